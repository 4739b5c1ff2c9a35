//! Paths to answers. What can't be answered is told as JSON, `{"error": ...}`, with the status code
//! that fits and the remedy in its words.

use std::borrow::Cow;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::Response;
use axum::routing::{get, post};
use raft_host::id::GroupId;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tracing::warn;

use super::exposition::Exposition;
use super::metrics;
use super::status::{GroupPage, ReplicaFault, SettingFault, StatusSource, Unfit};
use crate::causes::with_causes;
use crate::limits::{ADMIN_DIGESTS_MAX, GROUPS_PAGE_DEFAULT, GROUPS_PAGE_MAX};

const PAGE: &str = include_str!("page.html");
const PATHS: &str =
    "/, /status, /metrics, /healthz, /readyz, /groups, /replica, and for POST /config";

/// What the handlers share.
struct Admin<S> {
    source: Arc<S>,
    digests: Arc<Semaphore>,
}

impl<S> Clone for Admin<S> {
    fn clone(&self) -> Self {
        Self {
            source: Arc::clone(&self.source),
            digests: Arc::clone(&self.digests),
        }
    }
}

pub(super) fn router<S: StatusSource>(source: Arc<S>) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/status", get(status::<S>))
        .route("/metrics", get(exposition::<S>))
        .route("/healthz", get(health::<S>))
        .route("/readyz", get(readiness::<S>))
        .route("/groups", get(groups::<S>))
        .route("/replica", get(replica::<S>))
        .route("/config", post(set::<S>))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .with_state(Admin {
            source,
            digests: Arc::new(Semaphore::new(ADMIN_DIGESTS_MAX)),
        })
}

fn answer(code: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let no_sniffing = HeaderValue::from_static("nosniff");
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, no_sniffing);
    response
}

fn json(code: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => answer(code, "application/json", body),
        Err(error) => {
            warn!(%error, "an admin answer has no form in JSON");
            let body = r#"{"error":"the answer has no form in JSON"}"#;
            answer(StatusCode::INTERNAL_SERVER_ERROR, "application/json", body)
        }
    }
}

fn fault(code: StatusCode, error: impl Into<Cow<'static, str>>) -> Response {
    #[derive(Serialize)]
    struct Fault {
        error: Cow<'static, str>,
    }
    let error = error.into();
    json(code, &Fault { error })
}

async fn page() -> Response {
    let mut response = answer(StatusCode::OK, "text/html; charset=utf-8", PAGE);
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                  connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    let policy = HeaderValue::from_static(policy);
    response
        .headers_mut()
        .insert(header::CONTENT_SECURITY_POLICY, policy);
    response
}

async fn status<S: StatusSource>(State(admin): State<Admin<S>>) -> Response {
    json(StatusCode::OK, &admin.source.status())
}

async fn exposition<S: StatusSource>(State(admin): State<Admin<S>>) -> Response {
    let mut out = Exposition::default();
    metrics::write(&admin.source.status(), &mut out);
    admin.source.add_metrics(&mut out);
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    answer(StatusCode::OK, kind, out.into_text())
}

fn fit(state: Result<(), Unfit>) -> Response {
    match state {
        Ok(()) => answer(StatusCode::OK, "text/plain; charset=utf-8", "ok\n"),
        Err(unfit) => fault(StatusCode::SERVICE_UNAVAILABLE, unfit.reason),
    }
}

async fn health<S: StatusSource>(State(admin): State<Admin<S>>) -> Response {
    fit(admin.source.health())
}

async fn readiness<S: StatusSource>(State(admin): State<Admin<S>>) -> Response {
    fit(admin.source.readiness())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PageQuery {
    after: Option<u64>,
    limit: Option<usize>,
}

async fn groups<S: StatusSource>(
    State(admin): State<Admin<S>>,
    query: Result<Query<PageQuery>, QueryRejection>,
) -> Response {
    let query = match query {
        Ok(Query(query)) => query,
        Err(rejection) => return bad_query(&rejection, "/groups?after=ID&limit=N"),
    };
    let limit = query.limit.unwrap_or(GROUPS_PAGE_DEFAULT);
    if !(1..=GROUPS_PAGE_MAX).contains(&limit) {
        let error = format!("limit is {limit}, and must be from 1 to {GROUPS_PAGE_MAX}");
        return fault(StatusCode::BAD_REQUEST, error);
    }
    let groups = admin
        .source
        .groups(query.after.map(GroupId::new), limit)
        .await;
    let is_full = groups.len() >= limit;
    let next_after = groups.last().filter(|_| is_full).map(|group| group.group);
    let page = GroupPage {
        schema: "multigroup.groups/1".into(),
        groups,
        next_after,
    };
    json(StatusCode::OK, &page)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplicaQuery {
    group: u64,
}

async fn replica<S: StatusSource>(
    State(admin): State<Admin<S>>,
    query: Result<Query<ReplicaQuery>, QueryRejection>,
) -> Response {
    let group = match query {
        Ok(Query(query)) => GroupId::new(query.group),
        Err(rejection) => return bad_query(&rejection, "/replica?group=ID"),
    };
    // It is never closed, so this can't fail.
    let _turn = admin.digests.acquire().await;
    match admin.source.replica(group).await {
        Ok(state) => json(StatusCode::OK, &state),
        Err(error) => {
            let code = match &error {
                ReplicaFault::Absent { .. } => StatusCode::NOT_FOUND,
                ReplicaFault::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
                ReplicaFault::Store { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            };
            fault(code, with_causes(&error))
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Setting {
    key: String,
    value: String,
}

/// JSON only: no page of another site can send that without this node's leave, which it doesn't give.
async fn set<S: StatusSource>(
    State(admin): State<Admin<S>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let form = r#"the body must be {"key": "...", "value": "..."} as application/json"#;
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    if kind != Some(b"application/json") {
        return fault(StatusCode::UNSUPPORTED_MEDIA_TYPE, form);
    }
    let Setting { key, value } = match serde_json::from_slice(&body) {
        Ok(setting) => setting,
        Err(error) => return fault(StatusCode::BAD_REQUEST, format!("{form}: {error}")),
    };
    match admin.source.set(&key, &value) {
        Ok(done) => json(StatusCode::OK, &Done { done }),
        Err(error) => {
            let code = match &error {
                SettingFault::NotRunning => StatusCode::SERVICE_UNAVAILABLE,
                SettingFault::NeedsRestart { .. } => StatusCode::CONFLICT,
                SettingFault::Unknown(_) | SettingFault::Value { .. } => StatusCode::BAD_REQUEST,
            };
            fault(code, error.to_string())
        }
    }
}

#[derive(Serialize)]
struct Done {
    done: String,
}

fn bad_query(rejection: &QueryRejection, form: &'static str) -> Response {
    let error = format!(
        "the query can't be read, its form is {form}: {}",
        rejection.body_text()
    );
    fault(StatusCode::BAD_REQUEST, error)
}

async fn unknown_path(uri: Uri) -> Response {
    let error = format!("there is nothing at {}; there is {PATHS}", uri.path());
    fault(StatusCode::NOT_FOUND, error)
}

async fn wrong_method(method: Method, uri: Uri) -> Response {
    let takes = if uri.path() == "/config" {
        "POST"
    } else {
        "GET"
    };
    let error = format!("{} takes {takes}, not {method}", uri.path());
    fault(StatusCode::METHOD_NOT_ALLOWED, error)
}

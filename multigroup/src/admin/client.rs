//! Asks a node's admin port. One connection for each question: these are few, and none may be asked
//! on a connection that a restarted node forgot.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::config::HostPort;
use crate::limits::ADMIN_ANSWER_BYTES_MAX;

/// Where an admin port is: `http://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminUrl {
    authority: String,
}

/// Why a text is no [`AdminUrl`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UrlError {
    /// Only plain HTTP is spoken.
    #[error("{got:?} doesn't begin with http://")]
    Scheme {
        /// The text.
        got: String,
    },
    /// There is no host, no port, or more than that.
    #[error("{got:?} is not of the form http://HOST:PORT")]
    Form {
        /// The text.
        got: String,
    },
}

impl FromStr for AdminUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let got = || text.to_owned();
        let rest = text
            .strip_prefix("http://")
            .ok_or_else(|| UrlError::Scheme { got: got() })?;
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-_[]:".contains(c);
        let port = authority
            .rsplit_once(':')
            .filter(|(host, _)| !host.is_empty());
        let port = port.and_then(|(_, port)| port.parse::<u16>().ok());
        match port {
            Some(1..) if authority.chars().all(plain) => Ok(Self {
                authority: authority.to_owned(),
            }),
            Some(_) | None => Err(UrlError::Form { got: got() }),
        }
    }
}

impl From<&HostPort> for AdminUrl {
    fn from(address: &HostPort) -> Self {
        Self {
            authority: address.to_string(),
        }
    }
}

impl fmt::Display for AdminUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.authority)
    }
}

/// Why a question has no answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FetchError {
    /// No connection was made.
    #[error("can't reach {url}")]
    Connect {
        /// Whom.
        url: AdminUrl,
        /// Why not.
        source: io::Error,
    },
    /// Time was up.
    #[error("{url} didn't answer in time")]
    TimedOut {
        /// Who.
        url: AdminUrl,
    },
    /// The connection broke, or what came is no HTTP.
    #[error("{url} gave no whole answer")]
    Http {
        /// Who.
        url: AdminUrl,
        /// What happened.
        source: hyper::Error,
    },
    /// The answer is longer than any of ours.
    #[error("{url} answered with more than {max} bytes")]
    TooLong {
        /// Who.
        url: AdminUrl,
        /// The bound.
        max: usize,
    },
    /// The path can't be asked for.
    #[error("{path:?} is no path")]
    Path {
        /// The path.
        path: String,
        /// What is wrong with it.
        source: hyper::http::Error,
    },
    /// The answer is an error.
    #[error("{url} answered {code} to {path}: {error}")]
    Refused {
        /// Who.
        url: AdminUrl,
        /// What was asked.
        path: String,
        /// Its status code.
        code: u16,
        /// In its words.
        error: String,
    },
}

impl FetchError {
    /// Whether the node may not be there at all.
    #[must_use]
    pub const fn is_unreachable(&self) -> bool {
        matches!(
            self,
            Self::Connect { .. } | Self::TimedOut { .. } | Self::Http { .. }
        )
    }
}

/// Asks for a path and gives the body of the answer.
///
/// # Errors
/// [`FetchError`].
pub async fn fetch(url: &AdminUrl, path: &str, patience: Duration) -> Result<Bytes, FetchError> {
    let asking = timeout(patience, ask(url, path, None)).await;
    asking.unwrap_or_else(|_| Err(FetchError::TimedOut { url: url.clone() }))
}

/// Sends JSON to a path and gives the body of the answer.
///
/// # Errors
/// [`FetchError`].
pub async fn post(
    url: &AdminUrl,
    path: &str,
    json: &serde_json::Value,
    patience: Duration,
) -> Result<Bytes, FetchError> {
    let body = Bytes::from(json.to_string());
    let asking = timeout(patience, ask(url, path, Some(body))).await;
    asking.unwrap_or_else(|_| Err(FetchError::TimedOut { url: url.clone() }))
}

async fn ask(url: &AdminUrl, path: &str, json: Option<Bytes>) -> Result<Bytes, FetchError> {
    let broken = |source| FetchError::Http {
        url: url.clone(),
        source,
    };
    let request = match &json {
        None => Request::get(path),
        Some(_) => Request::post(path).header(header::CONTENT_TYPE, "application/json"),
    };
    let request = request
        .header(header::HOST, &url.authority)
        .header(header::CONNECTION, "close")
        .body(Full::new(json.unwrap_or_default()))
        .map_err(|source| FetchError::Path {
            path: path.to_owned(),
            source,
        })?;
    let connecting = TcpStream::connect(&url.authority).await;
    let socket = connecting.map_err(|source| FetchError::Connect {
        url: url.clone(),
        source,
    })?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket))
        .await
        .map_err(broken)?;
    // Driven beside the question and dropped with it.
    let mut connection = std::pin::pin!(connection);
    let answering = async {
        let mut response = sender.send_request(request).await.map_err(broken)?;
        let mut body = BytesMut::new();
        while let Some(frame) = response.frame().await {
            let frame = frame.map_err(broken)?;
            let Some(part) = frame.data_ref() else {
                continue;
            };
            if body.len() + part.len() > ADMIN_ANSWER_BYTES_MAX {
                let (url, max) = (url.clone(), ADMIN_ANSWER_BYTES_MAX);
                return Err(FetchError::TooLong { url, max });
            }
            body.extend_from_slice(part);
        }
        Ok((response.status(), body.freeze()))
    };
    let mut answering = std::pin::pin!(answering);
    let (code, body) = tokio::select! {
        biased;
        answered = &mut answering => answered?,
        // It ends once it has handed over all that came, or failed, which the answer then tells.
        _ended = &mut connection => answering.await?,
    };
    if code == StatusCode::OK {
        return Ok(body);
    }
    Err(FetchError::Refused {
        url: url.clone(),
        path: path.to_owned(),
        code: code.as_u16(),
        error: error_of(&body),
    })
}

/// What a body says is wrong: our own servers' `error`, or the beginning of whatever it is.
fn error_of(body: &Bytes) -> String {
    #[derive(Deserialize)]
    struct Fault {
        error: String,
    }
    match serde_json::from_slice::<Fault>(body) {
        Ok(fault) => fault.error,
        Err(_) => String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_url_is_plain_http_to_a_host_and_a_port() {
        for (text, shown) in [
            ("http://127.0.0.1:7301", "http://127.0.0.1:7301"),
            (
                "http://node-1.example.org:80/",
                "http://node-1.example.org:80",
            ),
            ("http://[::1]:7301", "http://[::1]:7301"),
        ] {
            assert_eq!(text.parse::<AdminUrl>().unwrap().to_string(), shown);
        }
        for text in ["127.0.0.1:7301", "https://127.0.0.1:7301", ""] {
            let error = text.parse::<AdminUrl>().unwrap_err();
            assert!(matches!(error, UrlError::Scheme { .. }), "{text}");
        }
        for text in [
            "http://h",
            "http://:1",
            "http://h:0",
            "http://h:1/status",
            "http://u@h:1",
        ] {
            let error = text.parse::<AdminUrl>().unwrap_err();
            assert!(matches!(error, UrlError::Form { .. }), "{text}");
        }
    }
}

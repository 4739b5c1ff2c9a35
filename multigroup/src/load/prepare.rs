//! Makes the keys of a run before its clock starts: `SETNX`, which does no harm when it is repeated,
//! so unlike the run's own operations it is, at another node, until each key is there.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use transport::io::clock;

use super::answer::Answer;
use super::client::{CallError, Client, Endpoint};
use super::plan::Plan;
use super::run::{LoadError, Progress, Stop, told};
use crate::limits::{LOAD_FAILURE_PAUSE, LOAD_PIPELINE, LOAD_PREPARE_KEYS, LOAD_PREPARE_PATIENCE};

/// A key to be made, and what it holds at first.
pub(super) type NewKey = (String, Arc<[u8]>);

/// What one node was asked to make, and how that went.
struct Share {
    /// Which node.
    at: usize,
    made: usize,
    missing: Vec<usize>,
    fault: Option<Fault>,
}

impl Share {
    fn was_asked(&self) -> bool {
        self.made > 0 || self.fault.is_some()
    }

    fn is_gone(&self) -> bool {
        matches!(&self.fault, Some(Fault::Call(error)) if error.is_before_sending())
    }
}

/// Why a key isn't there yet.
#[derive(Debug)]
pub(super) enum Fault {
    Call(CallError),
    Refused { endpoint: Endpoint, got: Answer },
}

/// Makes all keys.
pub(super) async fn prepare(
    plan: &Plan,
    keys: Arc<Vec<NewKey>>,
    stop: &watch::Receiver<Stop>,
    on_progress: &mut impl FnMut(Progress),
) -> Result<(), LoadError> {
    let mut missing: Vec<usize> = (0..keys.len()).collect();
    let mut last_success = clock::now();
    let mut round = 0;
    // Nodes that couldn't be connected to when they were asked last.
    let mut gone = vec![false; plan.raw().endpoints.len()];
    let mut stop = stop.clone();
    while !missing.is_empty() {
        on_progress(Progress::Preparing {
            made: keys.len() - missing.len(),
            of: keys.len(),
        });
        // A part at a time, so that whoever waits sees it go on.
        let later = missing.split_off(missing.len().min(LOAD_PREPARE_KEYS));
        let asked = missing.len();
        let shares = tokio::select! {
            biased;
            () = told(&mut stop, Stop::Finish) => return Err(LoadError::Stopped),
            shares = one_round(plan, &keys, missing, round) => shares,
        };
        missing = shares
            .iter()
            .flat_map(|share| share.missing.iter().copied())
            .collect();
        if missing.len() < asked {
            last_success = clock::now();
        }
        missing.extend(later);
        missing.sort_unstable();
        for share in shares.iter().filter(|share| share.was_asked()) {
            gone[share.at] = share.is_gone();
        }
        let made_none = shares.iter().all(|share| share.made == 0);
        if let (Some(&key), true) = (missing.first(), made_none) {
            let nobody_there = gone.iter().all(|gone| *gone);
            give_up_or_wait(shares, nobody_there, &keys[key].0, last_success).await?;
        }
        round += 1;
    }
    Ok(())
}

/// After a round without any success.
async fn give_up_or_wait(
    shares: Vec<Share>,
    nobody_there: bool,
    key: &str,
    last_success: Instant,
) -> Result<(), LoadError> {
    let faults: Vec<Fault> = shares.into_iter().filter_map(|share| share.fault).collect();
    let out_of_patience = clock::now().duration_since(last_success) >= LOAD_PREPARE_PATIENCE;
    match faults.into_iter().next() {
        Some(Fault::Call(source)) if nobody_there => Err(LoadError::Unreachable { source }),
        Some(Fault::Call(source)) if out_of_patience => {
            let key = key.to_owned();
            Err(LoadError::NotMade { key, source })
        }
        Some(Fault::Refused { endpoint, got }) if out_of_patience => Err(LoadError::Refused {
            key: key.to_owned(),
            endpoint,
            got: Box::new(got),
        }),
        Some(_) | None => {
            sleep(LOAD_FAILURE_PAUSE).await;
            Ok(())
        }
    }
}

/// Shares the missing keys out to the nodes, in another way each round.
async fn one_round(
    plan: &Plan,
    keys: &Arc<Vec<NewKey>>,
    missing: Vec<usize>,
    round: usize,
) -> Vec<Share> {
    let endpoints = &plan.raw().endpoints;
    let mut shares = vec![Vec::new(); endpoints.len()];
    for (at, key) in missing.into_iter().enumerate() {
        shares[(at + round) % endpoints.len()].push(key);
    }
    let mut making = JoinSet::new();
    for (at, (endpoint, share)) in endpoints.iter().zip(shares).enumerate() {
        let (endpoint, keys, patience) = (endpoint.clone(), Arc::clone(keys), plan.raw().patience);
        making.spawn(async move { make((at, &endpoint), &keys, share, patience).await });
    }
    making.join_all().await
}

async fn make(
    (at, endpoint): (usize, &Endpoint),
    keys: &[NewKey],
    mut missing: Vec<usize>,
    patience: std::time::Duration,
) -> Share {
    let mut refused = Vec::new();
    let mut made = 0;
    let fault = match try_make(
        endpoint,
        keys,
        &mut missing,
        &mut refused,
        &mut made,
        patience,
    )
    .await
    {
        Err(error) => Some(Fault::Call(error)),
        Ok(got) => got.map(|got| Fault::Refused {
            endpoint: endpoint.clone(),
            got,
        }),
    };
    missing.append(&mut refused);
    Share {
        at,
        made,
        missing,
        fault,
    }
}

/// Moves keys out of `missing` once they are answered for; gives the last refusal.
async fn try_make(
    endpoint: &Endpoint,
    keys: &[NewKey],
    missing: &mut Vec<usize>,
    refused: &mut Vec<usize>,
    made: &mut usize,
    patience: std::time::Duration,
) -> Result<Option<Answer>, CallError> {
    let mut refusal = None;
    if missing.is_empty() {
        return Ok(None);
    }
    let mut client = Client::connect(endpoint, clock::now() + patience).await?;
    while !missing.is_empty() {
        let deadline = clock::now() + patience;
        let batch = missing.len().min(LOAD_PIPELINE);
        for &key in missing.iter().rev().take(batch) {
            let (name, first) = &keys[key];
            client.queue(&[b"SETNX", name.as_bytes(), first]);
        }
        client.send(deadline).await?;
        for _ in 0..batch {
            let answer = client.next(deadline).await?;
            let key = missing.pop();
            if let Answer::Integer(0 | 1) = answer {
                *made += 1;
            } else {
                refusal = Some(answer);
                refused.extend(key);
            }
        }
    }
    Ok(refusal)
}

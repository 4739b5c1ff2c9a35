//! The log as a whole, on a simulated disk, driven turn by turn, held against a naive oracle.

mod crash;
mod damage;
mod host;
mod inspect;
mod model;
mod states;
mod support;
mod threads;

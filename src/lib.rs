//! Comporta decides, for Envoy, Istio or any service that asks over gRPC, whether a request may
//! pass.
//!
//! # The way of a request
//!
//! [`transport`] turns bytes into a [`request::Request`]. [`service`] matches its descriptors
//! against the rules of [`config`], and makes a [`store::Check`] of every limit that applies. The
//! [`store`] checks all of them, then charges all or none, by the arithmetic of [`algorithm`];
//! where it has no answer, [`failure`] has one. [`response`] folds the outcomes into a decision,
//! and [`transport`] writes it. Rules come from files, or over [`xds`]. [`server`] puts it all
//! together, as [`settings`] say.
//!
//! # What holds everywhere
//!
//! A request sees one configuration and one instant, read in [`clock`]. All limits of a request are
//! checked, then all are charged, or none. Nothing waits without a deadline, and nothing grows
//! without a bound. What a client sent reaches no key, label, log or header unescaped.
//!
//! # Words
//!
//! * *domain*: a namespace of rules. *descriptor*: an ordered list of *entries* (key and value) that
//!   describes a request. *rule*: what applies to the descriptors that end at one place of the tree.
//! * *limit*: so many requests per *window*, under an algorithm. *hits*: what a request counts for.
//! * *over limit*: denied. *shadow mode*: counted, never denied. *failure mode*: the answer without
//!   a store.
//! * *burst*: what a token bucket admits at once. *TAT*, theoretical arrival time: when a bucket will
//!   have drained. *charge*: to count hits. *refund*: to give them back.

pub mod transport;

pub mod request;
pub mod service;

pub mod config;
pub mod xds;

pub mod algorithm;
pub mod store;

pub mod failure;
pub mod response;

pub mod clock;
pub mod server;
pub mod settings;
pub mod telemetry;

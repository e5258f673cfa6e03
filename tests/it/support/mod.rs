//! What several tests need.

pub(crate) mod ads;
pub(crate) mod certificates;
pub(crate) mod envoy;
pub(crate) mod http;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod redis;
pub(crate) mod server;
pub(crate) mod upstream;

use std::time::Duration;

/// Waits for something that is certain to happen; the time-out is for when it isn't.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..600 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("waited 30 s in vain: {what}");
}

//! Sees that rule files change, and puts them in force.
//!
//! A set is read only when it has been at rest for a moment, and once more if it changed meanwhile, so that
//! a half-written file or a mixture of two versions is never taken for rules. Folders are watched, not files:
//! a Kubernetes `ConfigMap` changes by a symlink in its folder, which a watch of the file doesn't see.
//! Where notifications don't come (some network file systems), looking now and then finds the change.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::files::{self, Source, Stamp};
use super::parse::{ParseOptions, parse};
use super::{Config, ConfigError, Live};

/// A set that has not changed for so long is whole.
const REST: Duration = Duration::from_millis(100);

/// A set that never rests is read as it is after so many times.
const RESTS_MAX: usize = 50;

/// Watches the files of one configuration.
#[derive(Debug)]
pub struct Watch {
    paths: Vec<PathBuf>,
    options: ParseOptions,
    live: Arc<Live>,
    seen: Seen,
}

/// What was read last.
#[derive(Debug)]
struct Seen {
    stamps: Vec<Stamp>,
    /// What is in force.
    sources: Vec<Source>,
}

impl Watch {
    /// Watches for what follows `sources`, which are in force and had these stamps before they were read.
    pub fn new(
        paths: Vec<PathBuf>,
        options: ParseOptions,
        live: Arc<Live>,
        stamps: Vec<Stamp>,
        sources: Vec<Source>,
    ) -> Self {
        Self {
            paths,
            options,
            live,
            seen: Seen { stamps, sources },
        }
    }

    /// Goes on for ever: on each notification, on each `nudge`, and every `interval` (never, if that is zero,
    /// nor are there notifications then).
    pub async fn run(mut self, interval: Duration, mut nudge: mpsc::Receiver<()>) {
        let (notify, mut notified) = mpsc::channel(1);
        let start = |paths: &[PathBuf]| {
            let is_wanted = !interval.is_zero();
            is_wanted
                .then(|| watch_folders(paths, notify.clone()))
                .flatten()
        };
        let mut watching = start(&self.paths);
        loop {
            // The first time at once: for what changed before there was a watch.
            if !interval.is_zero() && self.has_changed().await {
                // Anew, since folders may have been replaced; before reading, so that nothing is missed.
                watching = start(&self.paths);
                self.reload().await;
            }
            tokio::select! {
                _ = notified.recv(), if watching.is_some() => {}
                () = sleep(interval), if !interval.is_zero() => {}
                nudged = nudge.recv() => match nudged {
                    Some(()) => self.reload().await,
                    None => return,
                },
            }
        }
    }

    async fn has_changed(&self) -> bool {
        stamps(&self.paths).await != self.seen.stamps
    }

    async fn reload(&mut self) {
        let (stamps, sources) = self.read_at_rest().await;
        self.seen.stamps = stamps;
        match sources {
            Ok(sources) if sources == self.seen.sources => self.live.confirm(),
            Ok(sources) => match self.parse(sources.clone()).await {
                Ok(config) => {
                    for warning in config.warnings() {
                        tracing::warn!("{warning}");
                    }
                    self.live.replace(config);
                    self.seen.sources = sources;
                }
                Err(errors) => self.live.refuse(&errors),
            },
            Err(errors) => self.live.refuse(&errors),
        }
    }

    async fn read_at_rest(&self) -> (Vec<Stamp>, Result<Vec<Source>, Vec<ConfigError>>) {
        let mut before = stamps(&self.paths).await;
        for _ in 0..RESTS_MAX {
            sleep(REST).await;
            let after = stamps(&self.paths).await;
            if after != before {
                before = after;
                continue;
            }
            let sources = self.read().await;
            let after = stamps(&self.paths).await;
            if after == before {
                return (after, sources);
            }
            before = after;
        }
        (before, self.read().await)
    }

    async fn read(&self) -> Result<Vec<Source>, Vec<ConfigError>> {
        let paths = self.paths.clone();
        in_background(move || files::read(&paths)).await
    }

    async fn parse(&self, sources: Vec<Source>) -> Result<Config, Vec<ConfigError>> {
        let options = self.options;
        in_background(move || parse(&sources, options)).await
    }
}

async fn stamps(paths: &[PathBuf]) -> Vec<Stamp> {
    let paths = paths.to_vec();
    in_background(move || files::stamps(&paths)).await
}

/// A slow disk, or a hundred thousand rules, don't keep the runtime from its other work.
async fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let done = spawn_blocking(work).await;
    done.expect("it doesn't panic, and is not aborted")
}

/// The folders, those that they or files are in, and those that symlinks lead to.
fn watch_folders(paths: &[PathBuf], notify: mpsc::Sender<()>) -> Option<RecommendedWatcher> {
    let on_event = move |event: notify::Result<Event>| {
        // Looking at a folder is an event as well, which must not make us look again.
        if !event.is_ok_and(|event| event.kind.is_access()) {
            // One that waits stands for all.
            let _already_notified = notify.try_send(());
        }
    };
    let mut watcher = match notify::recommended_watcher(on_event) {
        Ok(watcher) => watcher,
        Err(error) => {
            tracing::warn!(%error, "rule files can't be watched; they are looked at now and then");
            return None;
        }
    };
    for folder in folders(paths) {
        if let Err(error) = watcher.watch(&folder, RecursiveMode::NonRecursive) {
            tracing::debug!(%error, folder = %folder.display(), "can't be watched");
        }
    }
    Some(watcher)
}

fn folders(paths: &[PathBuf]) -> BTreeSet<PathBuf> {
    let mut folders = BTreeSet::new();
    for path in paths {
        let parent = path.parent().filter(|parent| *parent != Path::new(""));
        folders.insert(parent.unwrap_or(Path::new(".")).to_owned());
        let Ok(real) = path.canonicalize() else {
            continue;
        };
        if real.is_dir() {
            folders.insert(real);
        } else if let Some(parent) = real.parent() {
            folders.insert(parent.to_owned());
        }
    }
    folders
}

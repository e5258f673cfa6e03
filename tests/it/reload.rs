//! Rules that change while requests are decided.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use crate::support::http::get;
use crate::support::server::{Client, Running, request, start_in, start_with};
use crate::support::wait_until;

/// Notifications alone have to do.
const SELDOM: [&str; 2] = ["--reload-interval", "10m"];

fn rules(requests: u32) -> String {
    of_domain("d", requests)
}

fn of_domain(domain: &str, requests: u32) -> String {
    format!(
        "domain: {domain}\nfailure_mode: open\ndescriptors:\n  \
         - {{key: k, rate_limit: {{unit: day, requests_per_unit: {requests}}}}}\n"
    )
}

async fn ask(client: &mut Client) -> (i32, u32, u32) {
    let answer = client.ask(request(&[&[("k", "x")]])).await.unwrap();
    let status = &answer.statuses[0];
    let limit = status.current_limit.as_ref().unwrap().requests_per_unit;
    (answer.overall_code, limit, status.limit_remaining)
}

fn reloads(server: &Running, result: &str) -> String {
    let (_, metrics) = get(server.ports.http, "/metrics");
    let start = format!("comporta_config_reloads_total{{result=\"{result}\"}} ");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&start));
    value.unwrap_or("0").to_owned()
}

const CHANGES: u32 = 6;

/// Changes the rules again and again while somebody asks; every request is decided, and counted.
async fn changes_lose_nothing(server: Running, mut change: impl FnMut(&Path, u32)) {
    let mut client = server.client().await;
    let is_over = Arc::new(AtomicBool::new(false));
    let asking = tokio::spawn({
        let is_over = is_over.clone();
        async move {
            let mut asked = 0;
            while !is_over.load(Ordering::Relaxed) {
                let (code, limit, remaining) = ask(&mut client).await;
                asked += 1;
                assert_eq!((code, limit - remaining), (1, asked), "of {limit}");
                tokio::task::yield_now().await;
            }
            asked
        }
    });
    tokio::task::block_in_place(|| {
        for number in 1..=CHANGES {
            change(server.config.path(), 10_000_000 + number);
            wait_until("the rules are changed", || {
                reloads(&server, "loaded") == number.to_string()
            });
        }
    });
    is_over.store(true, Ordering::Relaxed);
    let asked = asking.await.unwrap();
    let (_, limit, remaining) = ask(&mut server.client().await).await;
    assert_eq!(
        (limit, limit - remaining),
        (10_000_000 + CHANGES, asked + 1)
    );
    assert_eq!(reloads(&server, "refused"), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_written_in_place() {
    let server = start_with(&rules(10_000_000), &SELDOM);
    changes_lose_nothing(server, |folder, requests| {
        fs::write(folder.join("rules.yaml"), rules(requests)).unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_renamed_over_another() {
    let server = start_with(&rules(10_000_000), &SELDOM);
    changes_lose_nothing(server, |folder, requests| {
        let new = folder.join("rules.yaml~");
        fs::write(&new, rules(requests)).unwrap();
        fs::rename(new, folder.join("rules.yaml")).unwrap();
    })
    .await;
}

/// Makes `link` lead elsewhere, at once.
fn swap(link: &Path, target: &str) {
    let new = link.with_extension("tmp");
    symlink(target, &new).unwrap();
    fs::rename(new, link).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_swapped_by_symlink() {
    let release = |root: &Path, requests: u32| {
        let name = format!("v{requests}");
        fs::create_dir(root.join(&name)).unwrap();
        fs::write(root.join(&name).join("rules.yaml"), rules(requests)).unwrap();
        swap(&root.join("current"), &name);
    };
    let root = tempfile::tempdir().unwrap();
    release(root.path(), 10_000_000);
    changes_lose_nothing(start_in(root, "current", &SELDOM), release).await;
}

/// What the kubelet does, step by step.
fn update_config_map(volume: &Path, requests: u32) {
    let version = format!("..2026_12_06_{requests}");
    fs::create_dir(volume.join(&version)).unwrap();
    let files = [
        ("a.yaml", rules(requests)),
        ("b.yaml", of_domain("e", requests)),
    ];
    for (name, text) in &files {
        fs::write(volume.join(&version).join(name), text).unwrap();
    }
    let data = volume.join("..data");
    let old = fs::read_link(&data).ok();
    symlink(&version, volume.join("..data_tmp")).unwrap();
    fs::rename(volume.join("..data_tmp"), &data).unwrap();
    match old {
        Some(old) => fs::remove_dir_all(volume.join(old)).unwrap(),
        None => {
            for (name, _) in &files {
                symlink(format!("..data/{name}"), volume.join(name)).unwrap();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_config_map() {
    let volume = tempfile::tempdir().unwrap();
    update_config_map(volume.path(), 10_000_000);
    changes_lose_nothing(start_in(volume, "", &SELDOM), update_config_map).await;
}

/// A link to a link: the folder of the second is not watched.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_notification_tells_is_found_by_looking() {
    let far = tempfile::tempdir().unwrap();
    fs::create_dir(far.path().join("links")).unwrap();
    let release = |far: &Path, requests: u32| {
        let name = format!("v{requests}");
        fs::create_dir(far.join(&name)).unwrap();
        fs::write(far.join(&name).join("rules.yaml"), rules(requests)).unwrap();
        swap(&far.join("links/current"), &format!("../{name}"));
    };
    release(far.path(), 10_000_000);
    let near = tempfile::tempdir().unwrap();
    symlink(far.path().join("links/current"), near.path().join("rules")).unwrap();
    let server = start_in(near, "rules", &["--reload-interval", "100ms"]);
    changes_lose_nothing(server, |_, requests| release(far.path(), requests)).await;
}

#[tokio::test]
async fn a_bad_set_changes_nothing_and_says_why() {
    let server = start_with(&rules(100), &SELDOM);
    let file = server.config.path().join("rules.yaml");
    let mut client = server.client().await;
    assert_eq!(ask(&mut client).await, (1, 100, 99));
    let rlconfig = || get(server.ports.debug, "/rlconfig").1;
    assert!(rlconfig().ends_with("# in force for 0 s; changed 0 times since the start\n"));

    fs::write(&file, rules(5).replace("unit: day", "unit: fortnight")).unwrap();
    wait_until("it is refused", || reloads(&server, "refused") == "1");
    assert_eq!(ask(&mut client).await, (1, 100, 98));
    let shown = rlconfig();
    assert!(
        shown.contains("# 0 s ago, what followed was refused:\n# "),
        "{shown}"
    );
    assert!(shown.contains("`unit` is `fortnight`"), "{shown}");
    assert!(
        shown.ends_with("# 1 error; nothing was loaded\n"),
        "{shown}"
    );
    let is_refused = || {
        get(server.ports.http, "/metrics")
            .1
            .contains("\ncomporta_config_refused 1\n")
    };
    assert!(is_refused());

    // Back to what is in force: nothing changes but the complaint.
    fs::write(&file, rules(100)).unwrap();
    wait_until("the complaint is gone", || !is_refused());
    assert_eq!(reloads(&server, "loaded"), "0");

    fs::remove_file(&file).unwrap();
    wait_until("it is refused", || reloads(&server, "refused") == "2");
    fs::write(&file, rules(200)).unwrap();
    wait_until("it is loaded", || reloads(&server, "loaded") == "1");
    assert_eq!(ask(&mut client).await, (1, 200, 197));
    assert!(rlconfig().ends_with("# in force for 0 s; changed 1 times since the start\n"));
}

/// The count stays, whatever the limit becomes.
#[tokio::test]
async fn a_limit_lowered_below_the_count_denies_and_one_raised_admits() {
    for algorithm in [
        "fixed_window",
        "sliding_window_log",
        "sliding_window_counter",
    ] {
        let rules = |requests: u32| {
            rules(requests).replace("unit: day", &format!("unit: day, algorithm: {algorithm}"))
        };
        let server = start_with(&rules(10), &SELDOM);
        let mut client = server.client().await;
        for _ in 0..5 {
            assert_eq!(ask(&mut client).await.0, 1);
        }
        for (number, (requests, code)) in [(3, 2), (5, 2), (6, 1)].into_iter().enumerate() {
            fs::write(server.config.path().join("rules.yaml"), rules(requests)).unwrap();
            let number = (number + 1).to_string();
            wait_until("it is loaded", || reloads(&server, "loaded") == number);
            assert_eq!(ask(&mut client).await, (code, requests, 0), "{algorithm}");
        }
    }
}

/// Without notifications and without looking, only when told to.
#[tokio::test]
async fn a_hangup_loads_the_rules_anew() {
    let server = start_with(&rules(10), &["--reload-interval", "0s"]);
    let file = server.config.path().join("rules.yaml");
    fs::write(file, rules(20)).unwrap();
    let mut client = server.client().await;
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(ask(&mut client).await.1, 10);
    let process = std::process::id().to_string();
    let hangup = Command::new("kill").args(["-HUP", &process]).status();
    assert!(hangup.unwrap().success());
    wait_until("it is loaded", || reloads(&server, "loaded") == "1");
    assert_eq!(ask(&mut client).await.1, 20);
}

/// A set of two files is taken as a whole, so a file that is half of a change waits for the other.
#[tokio::test]
async fn a_set_that_changes_while_it_is_read_is_read_again() {
    let folder: TempDir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("a.yaml", &rules(10));
    write("b.yaml", &of_domain("e", 10));
    let path = folder.path().to_owned();
    let server = start_in(folder, "", &SELDOM);
    for number in 1..=20 {
        // Within the time that a set has to be at rest.
        fs::write(path.join("a.yaml"), "domain: d\n").unwrap();
        fs::write(path.join("b.yaml"), of_domain("e", 10 + number)).unwrap();
        fs::write(path.join("a.yaml"), rules(10 + number)).unwrap();
    }
    wait_until("it is loaded", || reloads(&server, "loaded") == "1");
    assert_eq!(reloads(&server, "refused"), "0");
    assert_eq!(ask(&mut server.client().await).await.1, 30);
}

/// Watching costs nothing while nothing changes.
#[test]
fn an_idle_server_is_idle() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("rules.yaml"), rules(10)).unwrap();
    let mut server = Command::new(env!("CARGO_BIN_EXE_comporta"));
    server.arg("--config").arg(folder.path());
    for flag in ["--grpc-addr", "--http-addr", "--debug-addr"] {
        server.args([flag, "127.0.0.1:0"]);
    }
    let mut server = server.stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(3));
    let stat = fs::read_to_string(format!("/proc/{}/stat", server.id())).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    // User and system time, in hundredths of a second.
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let times = fields.split(' ').skip(11).take(2);
    let used: u32 = times.map(|time| time.parse::<u32>().unwrap()).sum();
    assert!(
        used < 100,
        "{used} hundredths of a second of CPU time in 3 s"
    );
}

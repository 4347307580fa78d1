//! Seen from the kernel: for every acknowledged write an `fdatasync` of the log's file lies between
//! the arrival of its request and its answer.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::ops::RangeInclusive;

use serde_json::json;
use tempfile::TempDir;

use crate::harness::{TestServer, alone, runs, skip};

const SYSTEM_CALLS: &str = "trace=fdatasync,fsync,read,readv,recvfrom,recvmsg,\
                            write,writev,sendto,sendmsg";

const WRITERS: usize = 8;
const WRITES_EACH: usize = 15;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_acknowledged_write_is_synced_between_its_request_and_its_answer() {
    if !runs("strace", &["-f", "-o", "/dev/null", "true"]) {
        skip("durability", "strace is absent or may not trace here");
        return;
    }
    let _alone = alone().await;
    let scratch = TempDir::new().expect("a temporary directory");
    let trace_file = scratch.path().join("trace");
    // -y names the file behind each descriptor, -s keeps enough of each buffer.
    let mut wrapper: Vec<OsString> =
        ["strace", "-f", "-y", "-s", "4096", "-e", SYSTEM_CALLS, "-o"].map(OsString::from).into();
    wrapper.push(trace_file.clone().into());

    let mut server = TestServer::start_under(wrapper).await;
    let user = server.register("writer").await;
    let room_id = user.create_room(json!({})).await;
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let (mut user, room_id) = (user.clone(), room_id.clone());
        // Connections of its own, so that the writers' requests overlap.
        user.http = server.http();
        writers.push(tokio::spawn(async move {
            let mut written = Vec::new();
            for number in 0..WRITES_EACH {
                let txn_id = format!("traced-{writer}-{number}");
                let event_id = user.send_text(&room_id, &txn_id, "durable?").await;
                written.push((txn_id, event_id));
            }
            written
        }));
    }
    let mut written = Vec::new();
    for writer in writers {
        written.extend(writer.await.expect("the writer did not fail"));
    }
    server.stop();

    let trace = Trace::read(&fs::read_to_string(&trace_file).expect("strace wrote its file"));
    assert_eq!(written.len(), WRITERS * WRITES_EACH);
    for (txn_id, event_id) in &written {
        if let Err(problem) = trace.synced_before_answer(txn_id, event_id) {
            panic!("{txn_id} ({event_id}): {problem}");
        }
    }
    println!("{} writes, {} syncs of the log's file", written.len(), trace.syncs.len());
}

/// What of a trace matters here; positions are line numbers of the trace, which stand in the order
/// in which the kernel reported.
#[derive(Default)]
struct Trace {
    /// Reads that brought a request line: the line, where the read was over.
    puts: Vec<(usize, String)>,
    /// Writes to sockets: the line, where the write began.
    answers: Vec<(usize, String)>,
    /// Successful syncs of the log's file, from begin to end.
    syncs: Vec<RangeInclusive<usize>>,
}

impl Trace {
    fn read(text: &str) -> Self {
        let mut trace = Self::default();
        // By thread, the begin of a sync that is not over.
        let mut unfinished: HashMap<&str, usize> = HashMap::new();
        for (at, line) in text.lines().enumerate() {
            let Some((thread, call)) = line.split_once(' ') else { continue };
            let call = call.trim_start();
            let name = call.strip_prefix("<... ").unwrap_or(call);
            let name = name.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
            match name {
                "fdatasync" | "fsync" => {
                    if call.starts_with("<... ") {
                        if let Some(begin) = unfinished.remove(thread)
                            && call.ends_with("= 0")
                        {
                            trace.syncs.push(begin..=at);
                        }
                    } else if !on_log(call) {
                        // Another file's.
                    } else if call.ends_with("<unfinished ...>") {
                        unfinished.insert(thread, at);
                    } else if call.ends_with("= 0") {
                        trace.syncs.push(at..=at);
                    }
                }
                // The end of the request line: the first bytes of a connection are read by
                // themselves, to tell HTTP/1 from HTTP/2.
                "read" | "readv" | "recvfrom" | "recvmsg" if call.contains(" HTTP/1.1") => {
                    trace.puts.push((at, call.to_owned()));
                }
                "write" | "writev" | "sendto" | "sendmsg" if on_socket(call) => {
                    trace.answers.push((at, call.to_owned()));
                }
                _ => {}
            }
        }
        trace
    }

    /// Whether a whole sync lies between the request and the answer.
    fn synced_before_answer(&self, txn_id: &str, event_id: &str) -> Result<(), String> {
        let request_line = format!("/{txn_id} HTTP/1.1");
        let (arrived, _) = self
            .puts
            .iter()
            .find(|(_, call)| call.contains(&request_line))
            .ok_or("the trace does not show its request")?;
        let (answered, _) = self
            .answers
            .iter()
            .find(|(_, call)| call.contains(event_id))
            .ok_or("the trace does not show its answer")?;
        let synced = self.syncs.iter().any(|sync| sync.start() > arrived && sync.end() < answered);
        if synced {
            Ok(())
        } else {
            Err(format!(
                "no sync of the log's file between the request (line {arrived} of the trace) and \
                 the answer (line {answered})"
            ))
        }
    }
}

/// Whether the call's first descriptor is a socket.
fn on_socket(call: &str) -> bool {
    let descriptor = call.split_once('(').map_or("", |(_, arguments)| arguments);
    let kind = descriptor.trim_start_matches(|c: char| c.is_ascii_digit());
    kind.starts_with("<socket:") || kind.starts_with("<TCP")
}

/// Whether the call is on the database that takes the log's writes.
fn on_log(call: &str) -> bool {
    call.contains("/log/tails/") && call.contains("/db>")
}

/// Real lines of strace 6.1, shortened.
const TRACED: &str = r#"100 recvfrom(9<socket:[71]>, "PUT /_matrix/client/v3/rooms/!r/send/m.room.message/one HTTP/1.1\r\n", 8192, 0, NULL, NULL) = 300
101 recvfrom(10<socket:[72]>,  <unfinished ...>
102 fdatasync(7</data/log/tails/000001/db> <unfinished ...>
101 <... recvfrom resumed>"PUT /_matrix/client/v3/rooms/!r/send/m.room.message/two HTTP/1.1\r\n", 8192, 0, NULL, NULL) = 300
102 <... fdatasync resumed>)            = 0
100 sendto(9<socket:[71]>, "HTTP/1.1 200 OK\r\n\r\n{\"event_id\":\"$aaa\"}", 60, MSG_NOSIGNAL, NULL, 0) = 60
101 sendto(10<socket:[72]>, "HTTP/1.1 200 OK\r\n\r\n{\"event_id\":\"$bbb\"}", 60, MSG_NOSIGNAL, NULL, 0 <unfinished ...>
102 fdatasync(7</data/log/tails/000001/db>)          = 0
101 <... sendto resumed>)               = 60
"#;

#[test]
fn a_sync_that_began_before_the_request_arrived_does_not_count() {
    let trace = Trace::read(TRACED);
    assert_eq!(trace.syncs, [2..=4, 7..=7]);
    assert_eq!(trace.synced_before_answer("one", "$aaa"), Ok(()));
    let problem = trace.synced_before_answer("two", "$bbb").expect_err("answered too early");
    assert!(problem.contains("no sync"), "{problem}");
}

#[test]
fn a_sync_of_another_file_or_a_failed_one_does_not_count() {
    let other = TRACED.replace("/data/log/tails/000001/db", "/data/archive/0001");
    assert!(Trace::read(&other).syncs.is_empty());
    let failed =
        TRACED.replace("resumed>)            = 0", "resumed>) = -1 EIO (Input/output error)");
    assert_eq!(Trace::read(&failed).syncs, [7..=7]);
}

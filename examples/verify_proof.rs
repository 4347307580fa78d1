//! Checks the proofs of `logcabin prove` and `logcabin prove-consistency` without any of the
//! server's code:
//!
//! ```sh
//! cargo run --example verify_proof -- KEY FILE
//! ```
//!
//! KEY is the server's public key in unpadded base64, from a source other than the proof. The
//! program prints what was proved and exits with 0, or prints why the proof fails and exits with 1.
//! `log_format.md`, "Proofs", has the rules.

use std::process::ExitCode;

use ed25519_dalek::{Signature, VerifyingKey};
use serde_json::Value;

type Hash = [u8; 32];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [key, file] = arguments.as_slice() else {
        eprintln!("usage: verify_proof KEY FILE");
        return ExitCode::from(2);
    };
    let proof = std::fs::read(file).map_err(|error| format!("{file}: {error}"));
    match proof.and_then(|proof| verify(key, &proof)) {
        Ok(shown) => {
            println!("{shown}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("nothing is shown: {why}");
            ExitCode::FAILURE
        }
    }
}

pub(crate) fn verify(key: &str, proof: &[u8]) -> Result<String, String> {
    let proof: Value = serde_json::from_slice(proof).map_err(|error| error.to_string())?;
    if proof["public_key"] != *key {
        return Err("the proof is by another key than KEY".to_owned());
    }
    let key = base64(key).and_then(|key| <Hash>::try_from(key).ok()).ok_or("KEY is no key")?;
    let key = VerifyingKey::from_bytes(&key).map_err(|error| format!("KEY: {error}"))?;
    let path = proof["path"].as_array().and_then(|path| path.iter().map(hash).collect());
    let path: Vec<Hash> = path.ok_or("there is no path of hashes")?;
    let said = |name: &str| Checkpoint::read(&proof[name], &key);
    match proof["proof"].as_str() {
        Some("inclusion") => inclusion(&proof, &path, &said("checkpoint")?),
        Some("consistency") => consistency(&path, &said("first")?, &said("second")?),
        _ => Err("this is no proof".to_owned()),
    }
}

/// A signed checkpoint.
struct Checkpoint {
    server: String,
    upto: u64,
    root: Hash,
    time: u64,
}

impl Checkpoint {
    fn read(said: &Value, key: &VerifyingKey) -> Result<Self, String> {
        let missing = |name: &str| format!("a checkpoint has no {name}");
        let text = |name: &str| said[name].as_str().ok_or_else(|| missing(name));
        let number = |name: &str| said[name].as_u64().ok_or_else(|| missing(name));
        let (server, upto, time) = (text("server_name")?, number("upto")?, number("time_ms")?);
        let (key_id, root, chain) = (text("key_id")?, text("root")?, text("chain")?);
        let statement = format!(
            "logcabin checkpoint 1\n{server}\n{key_id}\nrecords {upto}\nroot {root}\nchain {chain}\ntime {time}\n"
        );
        let signature = base64(text("signature")?).and_then(|bytes| bytes.try_into().ok());
        let signature = Signature::from_bytes(&signature.ok_or("a signature is none")?);
        key.verify_strict(statement.as_bytes(), &signature).map_err(|_| {
            format!("the checkpoint up to record {upto} is not signed with this key")
        })?;
        let root = hash(&said["root"]).ok_or("a root is no hash")?;
        Ok(Self { server: server.to_owned(), upto, root, time })
    }
}

fn inclusion(proof: &Value, path: &[Hash], checkpoint: &Checkpoint) -> Result<String, String> {
    let header = proof["header"].as_str().and_then(hex).ok_or("there is no header")?;
    let field = |from: usize, to: usize| header.get(from..to).ok_or("the header is too short");
    let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    let (offset, time) = (number(field(6, 14)?), number(field(14, 22)?));
    if proof["offset"].as_u64() != Some(offset) {
        return Err(format!("the header is that of record {offset}"));
    }
    let kind = String::from_utf8_lossy(field(71, 71 + number(field(69, 71)?) as usize)?);
    let mut with = "";
    if let Some(payload) = proof.get("payload") {
        let payload = payload.as_str().ok_or("the payload is no text")?;
        if blake3::hash(payload.as_bytes()).as_bytes() != field(37, 69)? {
            return Err("the payload is not the one that the header names".to_owned());
        }
        with = ", with this payload,";
    }
    let (index, size) = (offset.wrapping_sub(1), checkpoint.upto);
    if index >= size {
        return Err(format!("the checkpoint covers only {size} records"));
    }
    match lead(hash_of(0, &[&header]), path, index, size - 1) {
        Some((_, root)) if root == checkpoint.root => {}
        _ => return Err("the path does not lead from the record to the root".to_owned()),
    }
    let Checkpoint { server, time: signed, .. } = checkpoint;
    Ok(format!(
        "record {offset}, a {kind} of {time} ms,{with} is in the log of {server}: signed at {signed} ms for {size} records"
    ))
}

fn consistency(path: &[Hash], first: &Checkpoint, second: &Checkpoint) -> Result<String, String> {
    if first.server != second.server {
        return Err("the checkpoints are of two servers".to_owned());
    }
    if roots(path, first, second) != Some((first.root, second.root)) {
        return Err("the path does not lead to the roots".to_owned());
    }
    Ok(format!(
        "the {} records of {}, signed at {} ms, are the beginning of the {} signed at {} ms",
        first.upto, first.server, first.time, second.upto, second.time
    ))
}

/// The roots of the trees that a path leads to.
fn roots(path: &[Hash], first: &Checkpoint, second: &Checkpoint) -> Option<(Hash, Hash)> {
    if first.upto == second.upto {
        return path.is_empty().then_some((second.root, first.root));
    }
    let (mut at, mut last) = (first.upto.checked_sub(1)?, second.upto.checked_sub(1)?);
    if at > last {
        return None;
    }
    while at & 1 == 1 {
        (at, last) = (at >> 1, last >> 1);
    }
    let whole = first.upto.is_power_of_two();
    let (begin, path) = if whole { (&first.root, path) } else { path.split_first()? };
    lead(*begin, path, at, last)
}

/// Follows a path up from node `at` of a level whose last node is `last`. Returns the root of the
/// tree that ends with that node, and the root of the whole tree.
fn lead(begin: Hash, path: &[Hash], mut at: u64, mut last: u64) -> Option<(Hash, Hash)> {
    let (mut old, mut new) = (begin, begin);
    for beside in path {
        if last == 0 {
            return None;
        }
        if at & 1 == 1 || at == last {
            (old, new) = (hash_of(1, &[beside, &old]), hash_of(1, &[beside, &new]));
            while at & 1 == 0 && at != 0 {
                (at, last) = (at >> 1, last >> 1);
            }
        } else {
            new = hash_of(1, &[&new, beside]);
        }
        (at, last) = (at >> 1, last >> 1);
    }
    (last == 0).then_some((old, new))
}

fn hash_of(tag: u8, parts: &[&[u8]]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[tag]);
    for part in parts {
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

fn hash(text: &Value) -> Option<Hash> {
    hex(text.as_str()?)?.try_into().ok()
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}

fn base64(text: &str) -> Option<Vec<u8>> {
    const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0_u32, 0);
    for digit in text.chars() {
        bits = (bits << 6 | u32::try_from(DIGITS.find(digit)?).ok()?) & 0xffff;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push(u8::try_from(bits >> held & 0xff).ok()?);
        }
    }
    // The remaining bits do not make a byte.
    (bits & ((1 << held) - 1) == 0).then_some(bytes)
}

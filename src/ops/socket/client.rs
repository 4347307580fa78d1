//! The client's side of the admin socket.

use std::{
    borrow::BorrowMut,
    io::{BufReader, Read as _, Write as _},
    os::unix::net,
    path::{Path, PathBuf},
};

use bytes::Bytes;

use super::{DONE_BYTES, PATIENCE, Request, SocketError, TAG_DONE, TAG_END, TAG_ERROR};
use logcabin_log::{
    archive::{MAGIC, MAX_FRAME_BYTES, TAG_RECORD, TAG_SEAL},
    verify::Checker,
};
use logcabin_record::{CHAIN_START, Offset, Record, codec::Frame};

/// A blocking connection to a running server.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    stream: BufReader<net::UnixStream>,
}

impl Client {
    /// Connects to the socket at `path`.
    pub fn connect(path: &Path) -> Result<Self, SocketError> {
        let failed = |source| SocketError::Io { path: path.to_owned(), source };
        let stream = net::UnixStream::connect(path).map_err(failed)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
        let stream = BufReader::with_capacity(256 * 1024, stream);
        Ok(Self { path: path.to_owned(), stream })
    }

    /// The offset of the last durable record.
    pub fn end(&mut self) -> Result<Offset, SocketError> {
        self.request(&Request::End)?;
        let mut tag = [0; 1];
        self.fill(&mut tag)?;
        match tag {
            [TAG_END] => {
                let mut end = [0; 8];
                self.fill(&mut end)?;
                Ok(Offset::new(u64::from_be_bytes(end)))
            }
            [TAG_ERROR] => Err(self.refusal()),
            _ => Err(SocketError::Protocol("an unknown tag")),
        }
    }

    /// Sends an act as JSON, and returns the JSON of its outcome.
    ///
    /// # Errors
    /// When the server refuses: then it was not done. When the connection fails: then it may have
    /// been.
    pub(crate) fn act(&mut self, act: String) -> Result<Vec<u8>, SocketError> {
        // Leaving many rooms takes a while.
        let patient = self.stream.get_ref().set_read_timeout(None);
        patient.map_err(|source| SocketError::Io { path: self.path.clone(), source })?;
        self.request(&Request::Act(act))?;
        let mut tag = [0; 1];
        self.fill(&mut tag)?;
        match tag {
            [TAG_DONE] => {
                let mut length = [0; 4];
                self.fill(&mut length)?;
                let length = u32::from_be_bytes(length) as usize;
                if length > DONE_BYTES {
                    return Err(SocketError::Protocol("it is too long"));
                }
                let mut json = vec![0; length];
                self.fill(&mut json)?;
                Ok(json)
            }
            [TAG_ERROR] => Err(self.refusal()),
            _ => Err(SocketError::Protocol("an unknown tag")),
        }
    }

    /// The records from `from` to `to`, verified. They must be read to the end before the next
    /// request.
    pub fn records(&mut self, from: Offset, to: Offset) -> Result<Answer<&mut Self>, SocketError> {
        Answer::to(self, Request::Records { from, to, follow: false })
    }

    /// As [`Client::records`], on a connection of its own.
    pub fn into_records(self, from: Offset, to: Offset) -> Result<Answer<Self>, SocketError> {
        Answer::to(self, Request::Records { from, to, follow: false })
    }

    /// The records from `from` on, verified, and each new one as it becomes durable. Ends when the
    /// server stops.
    pub(crate) fn into_follow(self, from: Offset) -> Result<Answer<Self>, SocketError> {
        let forever = self.stream.get_ref().set_read_timeout(None);
        forever.map_err(|source| SocketError::Io { path: self.path.clone(), source })?;
        Answer::to(self, Request::Records { from, to: Offset::MAX, follow: true })
    }

    fn request(&mut self, request: &Request) -> Result<(), SocketError> {
        let line = format!("{request}\n");
        match self.stream.get_mut().write_all(line.as_bytes()) {
            // A server that refuses the connection closes it at once; the reason precedes that.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            sent => sent.map_err(|source| SocketError::Io { path: self.path.clone(), source }),
        }
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), SocketError> {
        let filled = self.stream.read_exact(bytes);
        filled.map_err(|source| SocketError::Io { path: self.path.clone(), source })
    }

    fn refusal(&mut self) -> SocketError {
        let mut length = [0; 2];
        if let Err(error) = self.fill(&mut length) {
            return error;
        }
        let mut text = vec![0; u16::from_be_bytes(length).into()];
        match self.fill(&mut text) {
            Ok(()) => SocketError::Refused(String::from_utf8_lossy(&text).into_owned()),
            Err(error) => error,
        }
    }
}

/// The records of one answer.
#[derive(Debug)]
pub struct Answer<C> {
    client: C,
    hasher: blake3::Hasher,
    checker: Checker,
    count: u64,
    done: bool,
}

impl<C: BorrowMut<Client>> Answer<C> {
    fn to(mut client: C, request: Request) -> Result<Self, SocketError> {
        let from = client.borrow_mut();
        from.request(&request)?;
        let mut magic = [0; 8];
        from.fill(&mut magic[..1])?;
        if magic[0] == TAG_ERROR {
            return Err(from.refusal());
        }
        from.fill(&mut magic[1..])?;
        if magic != *MAGIC {
            return Err(SocketError::Protocol("it does not begin like a segment"));
        }
        let (mut first, mut before) = ([0; 8], CHAIN_START);
        from.fill(&mut first)?;
        from.fill(&mut before)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&magic).update(&first).update(&before);
        let last = Offset::new(u64::from_be_bytes(first)).prev();
        let checker = Checker::from_chain(last, before);
        Ok(Self { client, hasher, checker, count: 0, done: false })
    }

    fn advance(&mut self) -> Result<Option<Record>, SocketError> {
        let client = self.client.borrow_mut();
        let mut tag = [0; 1];
        client.fill(&mut tag)?;
        match tag {
            [TAG_RECORD] => {
                let mut length = [0; 4];
                client.fill(&mut length)?;
                let size = u32::from_be_bytes(length) as usize;
                if size > MAX_FRAME_BYTES {
                    return Err(SocketError::Protocol("an entry is too long"));
                }
                let mut frame = vec![0; size];
                client.fill(&mut frame)?;
                self.hasher.update(&tag).update(&length).update(&frame);
                let offset = self.checker.last().next();
                let frame = Frame::decode(&Bytes::from(frame))
                    .map_err(|source| SocketError::Frame { offset, source })?;
                self.checker.check(&frame.record)?;
                self.count += 1;
                Ok(Some(frame.record))
            }
            [TAG_SEAL] => {
                let (mut count, mut chain, mut hash) = ([0; 8], CHAIN_START, [0; 32]);
                client.fill(&mut count)?;
                client.fill(&mut chain)?;
                client.fill(&mut hash)?;
                self.hasher.update(&tag).update(&count).update(&chain);
                let fits = u64::from_be_bytes(count) == self.count
                    && chain == *self.checker.chain()
                    && hash == *self.hasher.finalize().as_bytes();
                if fits { Ok(None) } else { Err(SocketError::Protocol("the seal does not match")) }
            }
            [TAG_ERROR] => Err(client.refusal()),
            _ => Err(SocketError::Protocol("an entry of an unknown kind")),
        }
    }
}

impl<C: BorrowMut<Client>> Iterator for Answer<C> {
    type Item = Result<Record, SocketError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let next = self.advance();
        self.done = !matches!(next, Ok(Some(_)));
        next.transpose()
    }
}

//! The header in which a proxy says, before the first byte of a connection, whose connection it is:
//! the PROXY protocol, version 2
//! (<https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>, section 2.2).
//!
//! Not a byte beyond the header is read: what follows is for TLS, or for HTTP.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt as _};

use logcabin_base::{
    limits,
    proxy_protocol::{FIXED_BYTES, LOCAL, SIGNATURE},
};

/// What headers of version 1 begin with, which is text.
const VERSION_1: &[u8] = b"PROXY ";

/// Why a connection has no header that can be used.
#[derive(Debug, Error)]
pub(super) enum HeaderError {
    /// Nobody said anything, as when a port is only tried.
    #[error("it ended before a byte")]
    Silent,
    #[error("it has no PROXY header")]
    Missing,
    #[error("its PROXY header is of version 1; have the proxy send version 2 (send-proxy-v2)")]
    Version1,
    #[error("its PROXY header is of an unknown version, command or family")]
    Unknown,
    #[error("its PROXY header has {0} bytes")]
    TooLong(usize),
    #[error("its PROXY header is too short for its addresses")]
    TooShort,
    #[error("its PROXY header did not arrive: {0}")]
    Io(#[from] io::Error),
}

/// Reads the header. `None` means that the connection is the proxy's own, to see whether the server
/// is well, or that the proxy does not know the client.
pub(super) async fn read(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<Option<IpAddr>, HeaderError> {
    let mut fixed = [0; FIXED_BYTES];
    let mut length = 0;
    while length < FIXED_BYTES {
        match stream.read(&mut fixed[length..]).await? {
            0 if length == 0 => return Err(HeaderError::Silent),
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            read => length += read,
        }
        begins_well(&fixed[..length])?;
    }
    let [.., version_and_command, family, high, low] = fixed;
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length > limits::PROXY_HEADER_BYTES {
        return Err(HeaderError::TooLong(FIXED_BYTES + length));
    }
    let mut rest = vec![0; length];
    stream.read_exact(&mut rest).await?;
    client(version_and_command, family, &rest)
}

/// Whether these first bytes may be those of a header, so that others are refused at once.
fn begins_well(first: &[u8]) -> Result<(), HeaderError> {
    let signature = &first[..first.len().min(SIGNATURE.len())];
    if SIGNATURE.starts_with(signature) {
        return Ok(());
    }
    let is_text = VERSION_1.starts_with(&first[..first.len().min(VERSION_1.len())]);
    Err(if is_text { HeaderError::Version1 } else { HeaderError::Missing })
}

/// The address of the client. What follows the addresses, further statements of the proxy, is not
/// needed.
fn client(version_and_command: u8, family: u8, rest: &[u8]) -> Result<Option<IpAddr>, HeaderError> {
    const PROXY: u8 = 0x21;
    // Both addresses with their ports, in bytes.
    const V4: usize = 12;
    const V6: usize = 36;
    const UNIX: usize = 216;
    let least = match (version_and_command, family) {
        (LOCAL, _) | (PROXY, 0x00) => return Ok(None),
        (PROXY, 0x11) => V4,
        (PROXY, 0x21) => V6,
        (PROXY, 0x31) => UNIX,
        _ => return Err(HeaderError::Unknown),
    };
    if rest.len() < least {
        return Err(HeaderError::TooShort);
    }
    Ok(match least {
        V4 => rest.first_chunk().map(|octets: &[u8; 4]| Ipv4Addr::from(*octets).into()),
        V6 => rest.first_chunk().map(|octets: &[u8; 16]| {
            // A client that came by IPv4 is one, however the proxy listens.
            IpAddr::from(Ipv6Addr::from(*octets)).to_canonical()
        }),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use logcabin_base::proxy_protocol::own_header;

    fn header(version_and_command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [SIGNATURE.as_slice(), &[version_and_command, family], &length, rest].concat()
    }

    async fn of(bytes: &[u8]) -> (Result<Option<IpAddr>, HeaderError>, usize) {
        let mut left = bytes;
        let read = read(&mut left).await;
        (read, left.len())
    }

    #[tokio::test]
    async fn the_address_of_a_header_is_read_and_nothing_beyond_it() {
        let v4 = [203, 0, 113, 7, 127, 0, 0, 1, 0x30, 0x39, 0x1f, 0x48];
        let v6: Ipv6Addr = "2001:db8::7".parse().unwrap();
        let v6 = [&v6.octets()[..], &Ipv6Addr::LOCALHOST.octets(), &[0x30, 0x39, 0x1f, 0x48]];
        let mapped: Ipv6Addr = "::ffff:203.0.113.9".parse().unwrap();
        let mapped = [&mapped.octets()[..], &[0; 20]].concat();
        let with_more = [&v4[..], &[0x04, 0, 2, 1, 2]].concat();
        for (header, expected) in [
            (header(0x21, 0x11, &v4), Some("203.0.113.7")),
            (header(0x21, 0x11, &with_more), Some("203.0.113.7")),
            (header(0x21, 0x21, &v6.concat()), Some("2001:db8::7")),
            (header(0x21, 0x21, &mapped), Some("203.0.113.9")),
            // A check of health, an unknown client, and one of a Unix socket.
            (header(0x20, 0x00, &[]), None),
            (own_header().to_vec(), None),
            (header(0x20, 0x11, &v4), None),
            (header(0x21, 0x00, &[1, 2, 3]), None),
            (header(0x21, 0x31, &[b'a'; 216]), None),
        ] {
            let (read, left) = of(&[&header[..], b"GET / HTTP/1.1\r\n"].concat()).await;
            assert_eq!(read.unwrap(), expected.map(|address| address.parse().unwrap()));
            assert_eq!(left, 16, "what follows is left");
        }
    }

    #[tokio::test]
    async fn what_is_no_header_is_refused_as_soon_as_it_shows() {
        let long = header(0x21, 0x11, &vec![0; limits::PROXY_HEADER_BYTES + 1]);
        type Expected = fn(&HeaderError) -> bool;
        let cases: [(&[u8], Expected); 12] = [
            (b"", |error| matches!(error, HeaderError::Silent)),
            (b"G", |error| matches!(error, HeaderError::Missing)),
            (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", |error| matches!(error, HeaderError::Missing)),
            (b"\x16\x03\x01\x02\0\x01", |error| matches!(error, HeaderError::Missing)),
            (b"\r\n\r\nGET /", |error| matches!(error, HeaderError::Missing)),
            (b"PROXY TCP4 1.2.3.4 ", |error| matches!(error, HeaderError::Version1)),
            (b"\r\n\r\n\0\r\nQU", |error| matches!(error, HeaderError::Io(_))),
            (&header(0x11, 0x11, &[0; 12]), |error| matches!(error, HeaderError::Unknown)),
            (&header(0x22, 0x11, &[0; 12]), |error| matches!(error, HeaderError::Unknown)),
            // By UDP.
            (&header(0x21, 0x12, &[0; 12]), |error| matches!(error, HeaderError::Unknown)),
            (&header(0x21, 0x11, &[0; 11]), |error| matches!(error, HeaderError::TooShort)),
            (&long, |error| matches!(error, HeaderError::TooLong(_))),
        ];
        for (bytes, is_expected) in cases {
            let (read, _) = of(bytes).await;
            let error = read.unwrap_err();
            assert!(is_expected(&error), "{:?}: {error:?}", bytes.escape_ascii().to_string());
        }
        // One that is cut off never counts as whole.
        let whole = header(0x21, 0x11, &[0; 12]);
        for length in 1..whole.len() {
            assert!(of(&whole[..length]).await.0.is_err(), "{length}");
        }
    }
}

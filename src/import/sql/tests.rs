//! A real PostgreSQL, with certificates, reached as its parameters say. `psql`, which is made of
//! libpq, is asked for the same.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use super::{
    access::{Access, Parameters},
    database::{Cell, Database as _},
    postgresql::Postgresql,
    server::{Server, programs},
    tls::Pem,
};

/// Whether the connection that asks is encrypted.
const IS_ENCRYPTED: &str = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";

/// Who is let in, by the name of the database.
const ACCESS: &str = "local all all trust\nhostnossl plain all 127.0.0.1/32 trust\n\
    hostssl encrypted all 127.0.0.1/32 trust\nhostssl certified all 127.0.0.1/32 cert\n";

/// An authority.
struct Ca(Issuer<'static, KeyPair>);

impl Ca {
    fn new(directory: &Path, name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        fs::write(directory.join(format!("{name}.crt")), certificate.pem()).expect("a file");
        Self(Issuer::new(params, key))
    }
}

/// Writes a certificate and its key, which is its own authority if there is no other.
fn certify(directory: &Path, name: &str, params: CertificateParams, by: Option<&Ca>) {
    let key = KeyPair::generate().expect("a key");
    let certificate = match by {
        Some(Ca(issuer)) => params.signed_by(&key, issuer),
        None => params.self_signed(&key),
    };
    let certificate = certificate.expect("a certificate");
    fs::write(directory.join(format!("{name}.crt")), certificate.pem()).expect("a file");
    let path = directory.join(format!("{name}.key"));
    fs::write(&path, key.serialize_pem()).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("permissions");
}

/// The names of hosts that a certificate lists, and its common name.
fn named(names: &[&str], common: &str) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).expect("names");
    params.distinguished_name.push(DnType::CommonName, common);
    params
}

/// How a server gets its certificate.
#[derive(Clone, Copy)]
enum By {
    /// From an authority.
    Ca,
    /// It is its own authority.
    Itself,
    /// The same, in the first version of X.509, as `openssl` makes it of a request.
    Openssl,
}

/// A server with a certificate for these names of hosts, and with this common name.
fn server(test: &str, names: &[&str], common: &str, by: By) -> Option<Server> {
    let prepare = |directory: &Path| {
        let ca = Ca::new(directory, "ca");
        drop(Ca::new(directory, "other"));
        match by {
            By::Ca => certify(directory, "server", named(names, common), Some(&ca)),
            By::Itself => certify(directory, "server", named(names, common), None),
            By::Openssl => by_openssl(directory, common),
        }
        certify(directory, "client", named(&[], "mas"), Some(&ca));
        fs::write(directory.join("pg_hba.conf"), ACCESS).expect("a file");
    };
    let server = Server::start_with_tls(test, &prepare)?;
    for database in ["plain", "encrypted", "certified"] {
        server.run(&format!("CREATE DATABASE {database}"));
    }
    Some(server)
}

/// What PostgreSQL's manual says for a certificate, which is one of the first version. Debian's
/// PostgreSQL depends on `openssl`.
fn by_openssl(directory: &Path, common: &str) {
    let subject = format!("/CN={common}");
    let request = ["req", "-new", "-nodes", "-newkey", "rsa:2048", "-subj", &subject];
    let request = [&request[..], &["-keyout", "server.key", "-out", "server.csr"]].concat();
    let sign = ["x509", "-req", "-in", "server.csr", "-signkey", "server.key", "-days", "2"];
    for arguments in [request, [&sign[..], &["-out", "server.crt"]].concat()] {
        let made = Command::new("openssl").current_dir(directory).args(arguments).output();
        let made = made.expect("openssl runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    let key = directory.join("server.key");
    fs::set_permissions(key, fs::Permissions::from_mode(0o600)).expect("permissions");
}

/// Whether a connection is encrypted, or why there is none.
fn open(access: Access) -> Result<bool, String> {
    let mut database = Postgresql::open(access).map_err(|error| error.to_string())?;
    let rows = database.rows(IS_ENCRYPTED, &[]).map_err(|error| error.to_string())?;
    Ok(rows == [[Cell::Int(1)]])
}

/// The same, by `psql`.
fn open_by_psql(server: &Server, parameters: &str) -> Result<bool, String> {
    let psql = programs().expect("programs").join("psql");
    let mut command = Command::new(psql);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("PG")) {
        command.env_remove(name);
    }
    // No files of the user who runs this.
    command.current_dir(server.path()).env("HOME", server.path());
    let said = command.args(["-X", "-A", "-t", "-c", IS_ENCRYPTED, parameters]).output();
    let said = said.expect("psql runs");
    if said.status.success() {
        Ok(said.stdout.starts_with(b"t"))
    } else {
        Err(String::from_utf8_lossy(&said.stderr).into_owned())
    }
}

/// Asserts for each database with parameters whether the connection is encrypted, or of what the
/// error speaks, and that libpq would say the same.
fn assert_as_libpq(server: &Server, cases: &[(&str, &str, Result<bool, &str>)]) {
    for (database, parameters, expected) in cases {
        let parameters = format!("user=mas port={} dbname={database} {parameters}", server.port());
        let access = Parameters::parse(&parameters).expect("parameters");
        let access = access.of_libpq(|name| server.path().join(name));
        let found = access.and_then(open);
        match (&found, expected) {
            (Ok(encrypted), Ok(expected)) => assert_eq!(encrypted, expected, "{parameters}"),
            (Err(why), Err(expected)) if why.contains(expected) => {}
            _ => panic!("{parameters}: {found:?}"),
        }
        let by_libpq = open_by_psql(server, &parameters);
        assert_eq!(
            found.clone().ok(),
            by_libpq.clone().ok(),
            "{parameters}: {found:?}, {by_libpq:?}"
        );
    }
}

#[test]
fn postgresql_is_reached_as_libpq_reaches_it() {
    let test = "postgresql_is_reached_as_libpq_reaches_it";
    let Some(server) = server(test, &["localhost"], "other.example", By::Ca) else { return };
    let socket = format!("host={} sslmode=verify-full", server.path().display());
    let cases = [
        ("plain", "host=127.0.0.1 sslmode=disable", Ok(false)),
        ("plain", "host=127.0.0.1 sslmode=allow", Ok(false)),
        ("plain", "host=127.0.0.1", Ok(false)),
        ("plain", "host=127.0.0.1 sslmode=require", Err("pg_hba.conf")),
        ("encrypted", "host=127.0.0.1 sslmode=disable", Err("pg_hba.conf")),
        ("encrypted", "host=127.0.0.1 sslmode=allow", Ok(true)),
        ("encrypted", "host=127.0.0.1", Ok(true)),
        ("encrypted", "host=127.0.0.1 sslmode=require", Ok(true)),
        // Authorities count in every mode, if they are there.
        ("encrypted", "host=127.0.0.1 sslmode=require sslrootcert=ca.crt", Ok(true)),
        ("encrypted", "host=127.0.0.1 sslmode=require sslrootcert=none.crt", Ok(true)),
        ("encrypted", "host=127.0.0.1 sslmode=require sslrootcert=other.crt", Err("certificate")),
        ("encrypted", "host=127.0.0.1 sslmode=prefer sslrootcert=other.crt", Err("certificate")),
        ("encrypted", "host=127.0.0.1 sslmode=verify-ca", Err("sslrootcert")),
        ("encrypted", "host=127.0.0.1 sslmode=verify-ca sslrootcert=ca.crt", Ok(true)),
        ("encrypted", "host=127.0.0.1 sslmode=verify-ca sslrootcert=other.crt", Err("certificate")),
        ("encrypted", "host=127.0.0.1 sslmode=verify-ca sslrootcert=none.crt", Err("none.crt")),
        ("encrypted", "host=127.0.0.1 sslmode=verify-full sslrootcert=ca.crt", Err("certificate")),
        ("encrypted", "host=localhost sslmode=verify-full sslrootcert=ca.crt", Ok(true)),
        (
            "encrypted",
            "host=localhost hostaddr=127.0.0.1 sslmode=verify-full sslrootcert=ca.crt",
            Ok(true),
        ),
        // The common name does not count beside others.
        (
            "encrypted",
            "host=other.example hostaddr=127.0.0.1 sslmode=verify-full sslrootcert=ca.crt",
            Err("certificate"),
        ),
        ("certified", "host=127.0.0.1 sslmode=require", Err("certificate")),
        ("certified", "host=127.0.0.1 sslmode=require sslcert=client.crt", Err("without a key")),
        (
            "certified",
            "host=127.0.0.1 sslmode=require sslcert=client.crt sslkey=client.key",
            Ok(true),
        ),
        // A socket is never encrypted.
        ("plain", &socket, Ok(false)),
    ];
    assert_as_libpq(&server, &cases);
}

#[test]
fn a_certificate_that_is_its_own_authority_and_lists_no_names_can_be_named() {
    let test = "a_certificate_that_is_its_own_authority_and_lists_no_names_can_be_named";
    for by in [By::Itself, By::Openssl] {
        let Some(server) = server(test, &[], "localhost", by) else { return };
        let cases = [
            ("encrypted", "host=127.0.0.1 sslmode=require", Ok(true)),
            ("encrypted", "host=127.0.0.1 sslmode=verify-ca sslrootcert=server.crt", Ok(true)),
            (
                "encrypted",
                "host=127.0.0.1 sslmode=verify-ca sslrootcert=ca.crt",
                Err("certificate"),
            ),
            ("encrypted", "host=localhost sslmode=verify-full sslrootcert=server.crt", Ok(true)),
            (
                "encrypted",
                "host=127.0.0.1 sslmode=verify-full sslrootcert=server.crt",
                Err("certificate"),
            ),
        ];
        assert_as_libpq(&server, &cases);
    }
}

#[test]
fn postgresql_is_reached_as_sqlx_reaches_it() {
    let test = "postgresql_is_reached_as_sqlx_reaches_it";
    let Some(server) = server(test, &["localhost"], "localhost", By::Ca) else { return };
    let access = |database: &str, parameters: &str| {
        let uri = format!("postgres://mas@localhost:{}/{database}?{parameters}", server.port());
        let access = Parameters::parse(&uri).expect("parameters");
        access.of_sqlx(|name| server.path().join(name)).unwrap_or_else(|why| panic!("{uri}: {why}"))
    };
    let text =
        |file: &str| Pem::Text(fs::read_to_string(server.path().join(file)).expect("a file"));
    assert_eq!(open(access("plain", "")), Ok(false));
    assert_eq!(open(access("encrypted", "")), Ok(true));
    assert_eq!(open(access("encrypted", "sslmode=require&sslrootcert=other.crt")), Ok(true));
    assert_eq!(open(access("encrypted", "sslmode=verify-full&sslrootcert=ca.crt")), Ok(true));
    let refused = open(access("encrypted", "sslmode=verify-full&sslrootcert=other.crt"));
    assert!(refused.is_err_and(|why| why.contains("certificate")));
    let mut texts = access("certified", "sslmode=verify-ca");
    texts.tls.root = Some(text("ca.crt"));
    texts.tls.certificate = Some(text("client.crt"));
    texts.tls.key = Some(text("client.key"));
    assert_eq!(open(texts.clone()), Ok(true));
    texts.tls.key = Some(text("client.crt"));
    assert!(open(texts).is_err_and(|why| why.contains("key")));
    let nowhere = Pem::File(PathBuf::from("nowhere.crt"));
    let mut missing = access("encrypted", "sslmode=verify-ca");
    missing.tls.root = Some(nowhere);
    assert!(open(missing).is_err_and(|why| why.contains("nowhere.crt")));
}

//! The bound of open connections.

use super::*;

/// A server that lets one connection be open.
async fn of_one_connection() -> Running {
    Running::configured(|config| {
        config.rate_limits.enabled = false;
        config.http.max_connections = 1;
    })
    .await
}

/// A request that [`app`] answers by its transaction id.
fn send_as(id: &str) -> String {
    format!(
        "PUT /_matrix/client/v3/rooms/!r:example.org/send/m.room.message/{id} HTTP/1.1\r\n\
         Host: x\r\nAuthorization: Bearer good\r\nContent-Length: 2\r\n\r\n{{}}"
    )
}

#[tokio::test]
async fn connections_beyond_the_bound_wait() {
    let server = of_one_connection().await;
    let request = "GET /_svc/client/versions HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut first = TcpStream::connect(server.address).await.unwrap();
    first.write_all(send_as("held").as_bytes()).await.unwrap();
    HELD_BEGUN.acquire().await.unwrap().forget();
    let mut second = TcpStream::connect(server.address).await.unwrap();
    let waiting = tokio::time::timeout(Duration::from_millis(200), exchange(&mut second, request));
    assert!(waiting.await.is_err());
    drop(first);
    let mut buffer = [0; 12];
    second.read_exact(&mut buffer).await.unwrap();
    assert_eq!(&buffer, b"HTTP/1.1 200");
}

#[tokio::test]
async fn a_connection_without_a_request_makes_room_for_another() {
    let server = of_one_connection().await;
    let request = "GET /_svc/client/versions HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    assert!(exchange(&mut idle, request).await.starts_with("HTTP/1.1 200"));
    assert_eq!(silent.read(&mut [0]).await.unwrap_or(0), 0, "it was closed");
    let mut third = TcpStream::connect(server.address).await.unwrap();
    assert!(exchange(&mut third, request).await.starts_with("HTTP/1.1 200"));
    assert_eq!(idle.read(&mut [0]).await.unwrap_or(0), 0, "it was closed");
}

#[tokio::test]
async fn a_request_that_waits_for_news_makes_room_and_its_connection_ends() {
    let server = of_one_connection().await;
    let mut waiting = TcpStream::connect(server.address).await.unwrap();
    let wait = send_as("news");
    waiting.write_all(wait.as_bytes()).await.unwrap();
    NEWS_BEGUN.acquire().await.unwrap().forget();
    // More of them than there are places, one after the other.
    for _ in 0..3 {
        let mut next = TcpStream::connect(server.address).await.unwrap();
        next.write_all(wait.as_bytes()).await.unwrap();
        let mut answer = String::new();
        waiting.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.to_ascii_lowercase().contains("connection: close"), "{answer}");
        NEWS_BEGUN.acquire().await.unwrap().forget();
        waiting = next;
    }
    let mut health = TcpStream::connect(server.address).await.unwrap();
    let versions = exchange(&mut health, &get("/_svc/client/versions")).await;
    assert!(versions.starts_with("HTTP/1.1 200"), "{versions}");
}

#[tokio::test]
async fn an_http2_connection_that_makes_room_ends_its_waits() {
    let server = of_one_connection().await;
    let client: Client<_, Body> =
        Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let ask = |method: Method, path: &str| {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", server.address))
            .header(header::AUTHORIZATION, "Bearer good")
            .body(Full::new(Bytes::from_static(b"{}")).boxed())
            .unwrap();
        tokio::spawn(client.request(request))
    };
    // The first opens the one connection, on which the others wait.
    let first = ask(Method::GET, "/_svc/client/versions").await.unwrap().unwrap();
    assert_eq!(first.into_body().collect().await.unwrap().to_bytes().first(), Some(&b'{'));
    let wait = "/_matrix/client/v3/rooms/!r:example.org/send/m.room.message/awaited";
    let waits = [ask(Method::PUT, wait), ask(Method::PUT, wait)];
    NEWS_AWAITED.acquire_many(2).await.unwrap().forget();
    let mut next = TcpStream::connect(server.address).await.unwrap();
    let versions = exchange(&mut next, &get("/_svc/client/versions")).await;
    assert!(versions.starts_with("HTTP/1.1 200"), "{versions}");
    for wait in waits {
        assert_eq!(wait.await.unwrap().unwrap().status(), StatusCode::OK);
    }
}

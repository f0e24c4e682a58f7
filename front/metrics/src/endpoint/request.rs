//! Requests and answers of the endpoint, as bytes. Pure functions.
//!
//! The endpoint knows one path. A request is read up to the empty line after its headers, which are
//! ignored, and so is a body.

/// Path of the metrics.
pub(super) const PATH: &str = "/metrics";
/// Bytes of a request line and its headers at most.
pub(super) const HEAD_BYTES_MAX: usize = 8 << 10;
/// Type of the answer with the metrics.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Type of every other answer.
const TEXT_TYPE: &str = "text/plain; charset=utf-8";

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// The metrics, with their text or, for HEAD, without it.
    Metrics { with_body: bool },
    /// Something else, which is answered with this status.
    Nothing { status: Status, with_body: bool },
}

/// Status of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Ok,
    BadRequest,
    NotFound,
    MethodNotAllowed,
    RequestTimeout,
    HeadersTooLarge,
    InternalError,
    Unavailable,
}

impl Status {
    /// Every status, in the order of their codes.
    pub(super) const ALL: [Self; 8] = [
        Self::Ok,
        Self::BadRequest,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::RequestTimeout,
        Self::HeadersTooLarge,
        Self::InternalError,
        Self::Unavailable,
    ];

    /// Code of the status.
    pub(super) fn code(self) -> &'static str {
        match self {
            Self::Ok => "200",
            Self::BadRequest => "400",
            Self::NotFound => "404",
            Self::MethodNotAllowed => "405",
            Self::RequestTimeout => "408",
            Self::HeadersTooLarge => "431",
            Self::InternalError => "500",
            Self::Unavailable => "503",
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::BadRequest => "Bad Request",
            Self::NotFound => "Not Found",
            Self::MethodNotAllowed => "Method Not Allowed",
            Self::RequestTimeout => "Request Timeout",
            Self::HeadersTooLarge => "Request Header Fields Too Large",
            Self::InternalError => "Internal Server Error",
            Self::Unavailable => "Service Unavailable",
        }
    }

    /// Sentence for the person that sees the answer.
    fn text(self) -> &'static str {
        match self {
            Self::Ok => "",
            Self::BadRequest => "This is no request of HTTP/1.0 or HTTP/1.1. Try: GET /metrics\n",
            Self::NotFound => {
                "Only the path /metrics exists here. It has the metrics of the process.\n"
            }
            Self::MethodNotAllowed => "Only GET and HEAD are possible.\n",
            Self::RequestTimeout => "The request did not arrive within 5 seconds.\n",
            Self::HeadersTooLarge => "The request line and the headers exceed 8 KiB.\n",
            Self::InternalError => "The figures could not be encoded. The log says why.\n",
            Self::Unavailable => "Too many connections are open. Try again.\n",
        }
    }
}

/// Length of the head of a request, if all of it is in `bytes`.
pub(super) fn head_len(bytes: &[u8]) -> Option<usize> {
    let end = |mark: &[u8]| {
        let at = bytes.windows(mark.len()).position(|window| window == mark)?;
        Some(at + mark.len())
    };
    match (end(b"\r\n\r\n"), end(b"\n\n")) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// What the head of a request asks for.
pub(super) fn parse(head: &[u8]) -> Asked {
    let bad = Asked::Nothing { status: Status::BadRequest, with_body: true };
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let Ok(line) = std::str::from_utf8(line) else { return bad };
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return bad;
    };
    let is_token = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_alphabetic());
    if !is_token || !matches!(version, "HTTP/1.0" | "HTTP/1.1") || target.is_empty() {
        return bad;
    }
    let with_body = method != "HEAD";
    // A proxy may ask with a whole URL. A query is possible, and means nothing.
    let path = target
        .strip_prefix("http://")
        .map_or(target, |rest| rest.find('/').map_or("/", |at| &rest[at..]));
    let path = path.split(['?', '#']).next().unwrap_or_default();
    match (method, path) {
        ("GET" | "HEAD", PATH) => Asked::Metrics { with_body },
        ("GET" | "HEAD", _) => Asked::Nothing { status: Status::NotFound, with_body },
        _ => Asked::Nothing { status: Status::MethodNotAllowed, with_body },
    }
}

/// The answer with the metrics.
pub(super) fn metrics(text: &str, with_body: bool) -> Vec<u8> {
    answer(Status::Ok, METRICS_TYPE, text, with_body)
}

/// An answer without metrics.
pub(super) fn refusal(status: Status, with_body: bool) -> Vec<u8> {
    answer(status, TEXT_TYPE, status.text(), with_body)
}

fn answer(status: Status, content_type: &str, text: &str, with_body: bool) -> Vec<u8> {
    let allow = if status == Status::MethodNotAllowed { "Allow: GET, HEAD\r\n" } else { "" };
    let mut out = format!(
        "HTTP/1.1 {} {}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{allow}\
         Connection: close\r\n\r\n",
        status.code(),
        status.reason(),
        text.len()
    );
    if with_body {
        out.push_str(text);
    }
    out.into_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn status(line: &str) -> Result<bool, Status> {
        match parse(format!("{line}\r\nHost: reef\r\n\r\n").as_bytes()) {
            Asked::Metrics { with_body } => Ok(with_body),
            Asked::Nothing { status, .. } => Err(status),
        }
    }

    #[test]
    fn only_get_and_head_of_the_path_are_served() {
        assert_eq!(status("GET /metrics HTTP/1.1"), Ok(true));
        assert_eq!(status("HEAD /metrics HTTP/1.0"), Ok(false));
        assert_eq!(status("GET /metrics?name[]=up HTTP/1.1"), Ok(true));
        assert_eq!(status("GET http://reef:9100/metrics HTTP/1.1"), Ok(true));
        for path in ["/", "/metricsx", "/metrics/", "//metrics", "metrics", "http://reef"] {
            assert_eq!(status(&format!("GET {path} HTTP/1.1")), Err(Status::NotFound), "{path}");
        }
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "get"] {
            let line = format!("{method} /metrics HTTP/1.1");
            assert_eq!(status(&line), Err(Status::MethodNotAllowed), "{method}");
        }
    }

    #[test]
    fn malformed_request_lines_are_bad_requests() {
        for line in [
            "",
            "GET",
            "GET /metrics",
            "GET /metrics HTTP/2.0",
            "GET  /metrics HTTP/1.1",
            "GET /metrics HTTP/1.1 more",
            "*1 $4 PING",
            " GET /metrics HTTP/1.1",
        ] {
            assert_eq!(status(line), Err(Status::BadRequest), "{line:?}");
        }
        let not_utf8 = parse(b"GET /\xff HTTP/1.1\r\n\r\n");
        assert_eq!(not_utf8, Asked::Nothing { status: Status::BadRequest, with_body: true });
    }

    #[test]
    fn head_ends_at_the_first_empty_line() {
        assert_eq!(head_len(b"GET / HTTP/1.1\r\nA: b\r\n\r\nbody"), Some(24));
        assert_eq!(head_len(b"GET / HTTP/1.0\n\nbody\r\n\r\n"), Some(16));
        assert_eq!(head_len(b"GET / HTTP/1.1\r\nA: b\r\n"), None);
    }

    #[test]
    fn answer_states_its_length_and_allows_no_reuse() {
        let text = String::from_utf8(metrics("reef 1\n", true)).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(text.contains("Content-Length: 7\r\n") && text.contains("Connection: close\r\n"));
        assert!(text.ends_with("\r\n\r\nreef 1\n"));
        let head = String::from_utf8(metrics("reef 1\n", false)).unwrap();
        assert!(head.contains("Content-Length: 7\r\n") && head.ends_with("\r\n\r\n"));
        let refused = String::from_utf8(refusal(Status::MethodNotAllowed, true)).unwrap();
        assert!(refused.contains("Allow: GET, HEAD\r\n"), "{refused}");
        for status in Status::ALL {
            assert!(
                status == Status::Ok
                    || status.text().ends_with(".\n")
                    || status.text().contains("Try")
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _len = head_len(&bytes);
            let _asked = parse(&bytes);
        }
    }
}

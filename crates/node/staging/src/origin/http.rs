//! The transport under OpenDAL's HTTP services. It sees to what no service does: that an answer is the range that was asked for, and of the version
//! that is expected.
//!
//! A server that ignores ranges answers 200 with the whole file: what comes before the range is dropped, and what is behind it is not read. A HEAD that
//! is refused, as by servers that sign addresses for GET alone, becomes a GET of one byte, whose answer tells the length.

use bytes::Bytes;
use futures_util::StreamExt;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, LAST_MODIFIED, RANGE};
use http::{Method, Request, Response, StatusCode, Uri};
use mend_data::ranges::Range;
use mend_data::record::Version;
use opendal::{Buffer, Error, ErrorKind, HttpBody, HttpTransport};
use opendal_http_transport_reqwest::ReqwestTransport;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

/// What answers have told, and must tell.
#[derive(Default)]
pub struct Seen {
    expected: Mutex<Option<Version>>,
    ignores_ranges: AtomicBool,
    /// Bytes that came and were not asked for.
    skipped: AtomicU64,
}

impl Seen {
    pub fn expect(&self, version: &Version) {
        *self.expected.lock().unwrap_or_else(PoisonError::into_inner) = Some(version.clone());
    }

    pub fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
    }

    pub fn ignores_ranges(&self) -> bool {
        self.ignores_ranges.load(Ordering::Relaxed)
    }

    /// How an answer's headers differ from what is expected.
    fn changed(&self, headers: &HeaderMap, size: Option<u64>) -> Option<String> {
        let expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        let now = Version { size: size.unwrap_or(expected.size), etag: text(headers, ETAG), modified_ns: modified(headers) };
        expected.changed(&now)
    }
}

fn text(headers: &HeaderMap, name: http::HeaderName) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

fn modified(headers: &HeaderMap) -> Option<i64> {
    let time = opendal::raw::Timestamp::parse_rfc2822(&text(headers, LAST_MODIFIED)?).ok()?;
    i64::try_from(time.into_inner().as_nanosecond()).ok()
}

/// The transport of one source.
pub struct Checked {
    pub inner: ReqwestTransport,
    /// The address as the user wrote it, for services that would write it otherwise.
    pub exactly: Option<Uri>,
    pub seen: Arc<Seen>,
}

/// `bytes=A-B`
fn asked(headers: &HeaderMap) -> Option<Range> {
    let value = text(headers, RANGE)?;
    let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
    let first: u64 = first.parse().ok()?;
    Some(Range::between(first, last.parse::<u64>().ok()?.checked_add(1)?))
}

/// `bytes A-B/TOTAL`: the range and the whole length, if that is told.
fn answered(headers: &HeaderMap) -> Option<(Range, Option<u64>)> {
    let value = text(headers, CONTENT_RANGE)?;
    let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    Some((Range::between(first.parse().ok()?, last.parse::<u64>().ok()?.checked_add(1)?), total.parse().ok()))
}

fn changed(why: String) -> Error {
    Error::new(ErrorKind::ConditionNotMatch, why)
}

impl HttpTransport for Checked {
    async fn fetch(&self, mut request: Request<Buffer>) -> opendal::Result<Response<HttpBody>> {
        if let Some(uri) = &self.exactly {
            *request.uri_mut() = uri.clone();
        }
        let range = asked(request.headers()).filter(|_| request.method() == Method::GET);
        let head = request.method() == Method::HEAD && self.exactly.is_some();
        let again = head.then(|| request.clone());
        let answer = self.inner.fetch(request).await?;
        if let Some(again) = again
            && [400, 403, 405, 501].contains(&answer.status().as_u16())
        {
            return self.length_by_get(again, answer).await;
        }
        match range {
            Some(range) => self.of_range(range, answer),
            None => Ok(answer),
        }
    }
}

impl Checked {
    /// What a HEAD would have answered.
    async fn length_by_get(&self, mut request: Request<Buffer>, refused: Response<HttpBody>) -> opendal::Result<Response<HttpBody>> {
        *request.method_mut() = Method::GET;
        request.headers_mut().insert(RANGE, http::HeaderValue::from_static("bytes=0-0"));
        let (mut parts, _) = self.inner.fetch(request).await?.into_parts();
        let length = match parts.status {
            StatusCode::OK => return Ok(Response::from_parts(parts, empty())),
            StatusCode::PARTIAL_CONTENT => answered(&parts.headers).and_then(|(_, total)| total),
            // An empty file has no first byte.
            StatusCode::RANGE_NOT_SATISFIABLE => text(&parts.headers, CONTENT_RANGE).filter(|value| value == "bytes */0").map(|_| 0),
            _ => None,
        };
        let Some(length) = length else { return Ok(refused) };
        parts.status = StatusCode::OK;
        parts.headers.insert(CONTENT_LENGTH, length.into());
        parts.headers.remove(CONTENT_RANGE);
        Ok(Response::from_parts(parts, empty()))
    }

    fn of_range(&self, range: Range, answer: Response<HttpBody>) -> opendal::Result<Response<HttpBody>> {
        let (parts, body) = answer.into_parts();
        match parts.status {
            StatusCode::PARTIAL_CONTENT => {
                let (found, total) = answered(&parts.headers).unwrap_or((range, None));
                if let Some(why) = self.seen.changed(&parts.headers, total) {
                    return Err(changed(why));
                }
                if found != range {
                    let why =
                        format!("it answered with bytes {} to {}, not {} to {}", found.offset, found.end(), range.offset, range.end());
                    return Err(Error::new(ErrorKind::Unexpected, why));
                }
                Ok(Response::from_parts(parts, body))
            }
            StatusCode::OK => {
                let total = text(&parts.headers, CONTENT_LENGTH).and_then(|length| length.parse().ok());
                if let Some(why) = self.seen.changed(&parts.headers, total) {
                    return Err(changed(why));
                }
                if total != Some(range.length) || range.offset > 0 {
                    self.seen.ignores_ranges.store(true, Ordering::Relaxed);
                }
                let mut whole: Inner = Box::new(futures_util::stream::empty());
                body.map_inner(|stream| {
                    whole = stream;
                    Box::new(futures_util::stream::empty())
                });
                let part = Part { whole, skip: range.offset, left: range.length, seen: self.seen.clone() };
                Ok(Response::from_parts(parts, HttpBody::new(part, None)))
            }
            StatusCode::RANGE_NOT_SATISFIABLE => Err(changed(format!("it ends before byte {}", range.end()))),
            _ => Ok(Response::from_parts(parts, body)),
        }
    }
}

fn empty() -> HttpBody {
    HttpBody::new(futures_util::stream::empty(), None)
}

type Inner = Box<dyn futures_util::Stream<Item = opendal::Result<Buffer>> + Send + Sync + Unpin>;

/// A range of a body that is the whole file.
struct Part {
    whole: Inner,
    skip: u64,
    left: u64,
    seen: Arc<Seen>,
}

impl futures_util::Stream for Part {
    type Item = opendal::Result<Buffer>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        while self.left > 0 {
            let mut bytes: Bytes = match std::task::ready!(self.whole.poll_next_unpin(context)) {
                Some(Ok(buffer)) => buffer.to_bytes(),
                other => return Poll::Ready(other),
            };
            let skipped = self.skip.min(bytes.len() as u64);
            self.skip -= skipped;
            self.seen.skipped.fetch_add(skipped, Ordering::Relaxed);
            let mut rest = bytes.split_off(skipped as usize);
            rest.truncate(self.left.min(rest.len() as u64) as usize);
            if !rest.is_empty() {
                self.left -= rest.len() as u64;
                return Poll::Ready(Some(Ok(rest.into())));
            }
        }
        Poll::Ready(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_in_headers() {
        let mut headers = HeaderMap::new();
        headers.insert(RANGE, "bytes=5-9".parse().unwrap());
        headers.insert(CONTENT_RANGE, "bytes 5-9/20".parse().unwrap());
        assert_eq!(asked(&headers), Some(Range { offset: 5, length: 5 }));
        assert_eq!(answered(&headers), Some((Range { offset: 5, length: 5 }, Some(20))));
        headers.insert(CONTENT_RANGE, "bytes 5-9/*".parse().unwrap());
        assert_eq!(answered(&headers), Some((Range { offset: 5, length: 5 }, None)));
        for bad in ["bytes */20", "bytes 5-18446744073709551615/20", "items 1-2/3", ""] {
            headers.insert(CONTENT_RANGE, bad.parse().unwrap());
            assert_eq!(answered(&headers), None, "{bad}");
        }
    }

    #[test]
    fn what_an_answer_says_of_itself_is_compared() {
        let seen = Seen::default();
        let mut headers = HeaderMap::new();
        headers.insert(LAST_MODIFIED, "Wed, 25 Nov 2026 22:00:00 GMT".parse().unwrap());
        assert_eq!(seen.changed(&headers, Some(1)), None);
        let then = modified(&headers);
        assert_eq!(then, Some(1_795_644_000_000_000_000));
        seen.expect(&Version { size: 1, etag: None, modified_ns: then });
        assert_eq!(seen.changed(&headers, Some(1)), None);
        assert!(seen.changed(&headers, Some(2)).is_some());
        headers.insert(LAST_MODIFIED, "Wed, 25 Nov 2026 22:00:01 GMT".parse().unwrap());
        assert!(seen.changed(&headers, None).is_some());
    }
}

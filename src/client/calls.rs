//! Time limits of calls, and clients that keep to them.

use std::time::Duration;

use http::Response;
use http::header::RETRY_AFTER;
use kube::client::ClientBuilder;
use tower::BoxError;
use tower::util::AndThenLayer;

use crate::lease::StoreError;
use crate::lease::store::TooBusy;

/// How long a single call of somebody who waits may take: the server answers in milliseconds, or something is wrong.
pub(crate) const CALL_LIMIT: Duration = Duration::from_secs(10);

/// How long a watch lasts before it is made anew: a dead connection is noticed by then.
pub(crate) const WATCH_SECONDS: u32 = 25;

/// How long the `attempt`th try, from 0, of a call takes at most that may be repeated at will: one that hangs does not
/// keep the next from being made soon, and a slow server has its time in the end.
pub(crate) fn try_limit(attempt: u32) -> Duration {
    let limit = Duration::from_millis(1500).saturating_mul(2_u32.saturating_pow(attempt));
    limit.min(CALL_LIMIT)
}

/// A client with retries of its own would turn "applied, not answered" into a plain conflict, and one without a
/// read time-out would hang for good on a server that accepts and never answers.
pub(crate) fn make_strict(config: &mut kube::Config) {
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    config.read_timeout = Some(Duration::from_secs(u64::from(WATCH_SECONDS) + 10));
    // Without this the time that a pooled connection sat idle would count as the server's silence.
    config.reset_reader_on_write = true;
    config.write_timeout = Some(Duration::from_secs(10));
}

/// A client of this configuration, which is made strict, that passes on what a server that is too busy asks for. The
/// client by itself drops that with the headers.
pub(crate) fn strict_client(mut config: kube::Config) -> kube::Result<kube::Client> {
    make_strict(&mut config);
    let builder = ClientBuilder::try_from(config)?;
    let heard = AndThenLayer::new(hear_retry_after);
    Ok(builder.with_layer(&heard).build())
}

/// The answer, or [`TooBusy`].
async fn hear_retry_after<B>(answer: Response<B>) -> Result<Response<B>, BoxError> {
    let code = answer.status().as_u16();
    let asked = answer.headers().get(RETRY_AFTER);
    let seconds = asked.and_then(|seconds| seconds.to_str().ok()?.parse().ok());
    match seconds {
        Some(seconds) if matches!(code, 429 | 503) => Err(BoxError::from(TooBusy {
            code,
            after: Duration::from_secs(seconds),
        })),
        _ => Ok(answer),
    }
}

/// The longest that a server may keep its callers away.
const AWAY_MOST: Duration = Duration::from_mins(1);

/// The wait after `error`: as long as one would wait by oneself, or longer where the server asks for that, but half of
/// the time that is `left` at most, so that there is time for another attempt.
pub(crate) fn pause_after(error: &StoreError, own: Duration, left: Duration) -> Duration {
    own.max(asked_of(error.retry_after()).min(left / 2))
}

/// As long as a server asked for, within reason, and a little longer: those who were sent away together do not come back
/// together.
pub(crate) fn asked_of(retry_after: Duration) -> Duration {
    retry_after
        .min(AWAY_MOST)
        .mul_f64(1.0 + rand::random::<f64>() / 4.0)
}

/// The wait before the `attempt`th repetition of a call that failed: from 200 ms up to 10 s, with jitter.
pub(crate) fn backoff(attempt: u32) -> Duration {
    let base = Duration::from_millis(200).saturating_mul(2_u32.saturating_pow(attempt.min(6)));
    base.min(Duration::from_secs(10))
        .mul_f64(0.5 + rand::random::<f64>() * 0.5)
}

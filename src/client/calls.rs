//! Time limits of calls, and clients that keep to them.

use std::time::Duration;

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

/// The wait before the `attempt`th repetition of a call that failed: from 200 ms up to 10 s, with jitter.
pub(crate) fn backoff(attempt: u32) -> Duration {
    let base = Duration::from_millis(200).saturating_mul(2_u32.saturating_pow(attempt.min(6)));
    base.min(Duration::from_secs(10))
        .mul_f64(0.5 + rand::random::<f64>() * 0.5)
}

//! `leasehold probe`: asks a sidecar or a `leasehold run` of the same Pod, for exec probes of images without a shell.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use super::{parse_address, parse_duration, say};

/// The longest answer that is read.
const ANSWER_MOST: u64 = 64 * 1024;

/// Ask a sidecar, or a run with --health-addr, whether the lock is held.
///
/// For exec probes of images without a shell.
///
/// Exit codes: 0 yes; 1 no, or no answer: the reason is printed; 2 usage.
#[derive(clap::Args)]
pub struct Args {
    /// Where the sidecar (or `leasehold run --health-addr`) answers
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7117", value_parser = parse_address)]
    addr: SocketAddr,
    /// Ask whether it runs at all, not whether the lock is held
    #[arg(long, conflicts_with = "grant")]
    live: bool,
    /// Print the grant as JSON, for a script that wants the token; a sidecar's only
    #[arg(long)]
    grant: bool,
    /// How long to wait for the answer
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    timeout: Duration,
}

pub fn run(args: &Args) -> ExitCode {
    if args.timeout.is_zero() {
        say("--timeout 0s leaves no time for an answer: give it some");
        return ExitCode::from(2);
    }
    let path = match (args.live, args.grant) {
        (true, _) => "/livez",
        (_, true) => "/v1/grant",
        _ => "/heldz",
    };
    match ask(args.addr, path, args.timeout) {
        Ok((200, body)) => {
            if args.grant {
                let _ = std::io::stdout().write_all(body.as_bytes());
            }
            ExitCode::SUCCESS
        }
        Ok((404, _)) if args.grant => {
            say(&format!(
                "{} tells of no grant: only a sidecar answers {path}; the command of a leasehold run has its token in \
                 LEASEHOLD_FENCING_TOKEN",
                args.addr
            ));
            ExitCode::FAILURE
        }
        Ok((code, body)) if body.trim().is_empty() => {
            say(&format!("{} answers {path} with {code}", args.addr));
            ExitCode::FAILURE
        }
        Ok((_, body)) => {
            say(body.trim_end());
            ExitCode::FAILURE
        }
        Err(error) => {
            say(&format!("no answer from {}: {error}", args.addr));
            ExitCode::FAILURE
        }
    }
}

/// Code and body of the answer.
fn ask(address: SocketAddr, path: &str, within: Duration) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, within)?;
    stream.set_read_timeout(Some(within))?;
    stream.set_write_timeout(Some(within))?;
    stream.write_all(
        format!("GET {path} HTTP/1.1\r\nHost: leasehold\r\nConnection: close\r\n\r\n").as_bytes(),
    )?;
    let mut answer = String::new();
    stream.take(ANSWER_MOST).read_to_string(&mut answer)?;
    parse(&answer).ok_or_else(|| std::io::Error::other("it does not speak HTTP"))
}

fn parse(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let code = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?;
    Some((code.parse().ok()?, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_code_and_a_body() {
        let answer = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\nno";
        assert_eq!(parse(answer), Some((503, "no".to_owned())));
        for other in ["", "SSH-2.0\r\n\r\n", "HTTP/1.1 x y\r\n\r\n"] {
            assert_eq!(parse(other), None, "{other:?}");
        }
    }
}

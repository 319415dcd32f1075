//! `leasehold crd`: print the custom resource definitions.

use std::io::{self, Write};
use std::process::ExitCode;

use leasehold::api::crds;
use serde_json::Value;

/// Print the custom resource definitions as YAML, for `kubectl apply --server-side -f -`.
#[derive(clap::Args)]
pub struct Args {}

pub fn run(_: &Args) -> ExitCode {
    match print(&mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader had enough: `leasehold crd | head`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leasehold: printing the custom resource definitions: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print(out: &mut impl Write) -> io::Result<()> {
    for crd in crds() {
        let mut crd = serde_json::to_value(crd)?;
        whole_numbers(&mut crd);
        let yaml = serde_norway::to_string(&crd).map_err(io::Error::other)?;
        write!(out, "---\n{yaml}")?;
    }
    out.flush()
}

/// Bounds are floating point numbers in the API: `50`, not `50.0`, as everybody writes them.
fn whole_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            #[expect(clippy::cast_possible_truncation, reason = "checked by the comparison")]
            if let Some(float) = number
                .as_f64()
                .filter(|f| f.fract() == 0.0 && f.abs() < 2f64.powi(53))
            {
                *number = (float as i64).into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        Value::Object(fields) => fields.values_mut().for_each(whole_numbers),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

//! Telling the story, and reading its numbers.

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

/// The driver.
pub fn story() -> Command {
    Command::new(env!("CARGO_BIN_EXE_nightly-billing"))
}

/// Tells some of it, and returns the numbers. What is promised of every telling is checked on the way: by the driver, which
/// says so with its exit code, and here the picture and the tokens.
pub fn tell(args: &[&str], customers: u64, tellings: &[&str]) -> Value {
    let picture = std::env::temp_dir().join(format!(
        "nightly-billing-{}-{}.svg",
        std::process::id(),
        tellings.join("-")
    ));
    let mut command = story();
    command
        .args(args)
        .args(["--format", "json", "--customers", &customers.to_string()])
        .args(
            tellings
                .iter()
                .map(|telling| format!("--telling={telling}")),
        )
        .arg("--svg")
        .arg(&picture);
    let output = command.output().expect("the story can be run");
    assert!(output.status.success(), "{}", words(&output));
    let drawn = fs::read_to_string(&picture).expect("there is a picture");
    fs::remove_file(&picture).expect("it can be removed");
    let numbers: Value =
        serde_json::from_slice(&output.stdout).expect("standard output is JSON alone");
    assert_eq!(numbers["customers"], customers);
    for telling in tellings {
        assert!(drawn.contains(&format!(">{telling}</text>")), "{telling}");
        let tokens: Vec<i64> =
            serde_json::from_value(numbers[telling]["tokens"].clone()).expect("numbers");
        assert!(
            tokens.len() >= 2 && tokens.is_sorted_by(|one, two| one < two),
            "{tokens:?}"
        );
    }
    numbers
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

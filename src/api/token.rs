//! The fencing token.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::names::MAX_TOKEN;

/// A number that belongs to one grant and is higher than that of every earlier grant of its slot.
///
/// It is 1 to 2^53 - 1. There is no arithmetic but [`checked_next`](Self::checked_next): tokens are compared, not
/// computed.
///
/// ```
/// use leasehold::api::FencingToken;
///
/// let token = FencingToken::new(41).unwrap();
/// assert!(token < token.checked_next().unwrap());
/// assert!(FencingToken::new(0).is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub struct FencingToken(i64);

/// A number that is no fencing token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a fencing token is a whole number from 1 to 9007199254740991")]
pub struct InvalidToken;

impl FencingToken {
    /// The lowest token.
    pub const MIN: Self = Self(1);
    /// The highest token; there is none after it.
    pub const MAX: Self = Self(MAX_TOKEN);

    /// The token of this number, if it is one.
    pub const fn new(number: i64) -> Result<Self, InvalidToken> {
        if number >= 1 && number <= MAX_TOKEN {
            Ok(Self(number))
        } else {
            Err(InvalidToken)
        }
    }

    /// The number, for a gate, an environment or a message.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }

    /// The token after this one, `None` after the last.
    #[must_use]
    pub const fn checked_next(self) -> Option<Self> {
        if self.0 < MAX_TOKEN {
            Some(Self(self.0 + 1))
        } else {
            None
        }
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for FencingToken {
    type Err = InvalidToken;

    /// Reads what [`Display`](fmt::Display) writes and nothing else: no sign, no leading zero, no space.
    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        if !text.starts_with(|c: char| c.is_ascii_digit() && c != '0') {
            return Err(InvalidToken);
        }
        text.parse().map_err(|_| InvalidToken).and_then(Self::new)
    }
}

impl TryFrom<i64> for FencingToken {
    type Error = InvalidToken;

    fn try_from(number: i64) -> Result<Self, InvalidToken> {
        Self::new(number)
    }
}

impl From<FencingToken> for i64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

impl JsonSchema for FencingToken {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "FencingToken".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "integer", "format": "int64", "minimum": 1, "maximum": MAX_TOKEN})
    }
}

/// Status writes "never granted" as 0, so that a slot's entry always has its token: `None` here, 0 there.
pub(super) mod zero_is_none {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    use super::FencingToken;

    #[expect(clippy::ref_option, reason = "serde calls it so")]
    pub fn serialize<S: Serializer>(
        token: &Option<FencingToken>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        token.map_or(0, i64::from).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<FencingToken>, D::Error> {
        match Option::<i64>::deserialize(from)? {
            None | Some(0) => Ok(None),
            Some(number) => FencingToken::new(number)
                .map(Some)
                .map_err(de::Error::custom),
        }
    }

    pub fn schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let mut schema = generator.subschema_for::<FencingToken>();
        schema.insert("minimum".into(), 0.into());
        schema
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_1_to_the_highest_exact_json_integer() {
        assert_eq!(FencingToken::new(0), Err(InvalidToken));
        assert_eq!(FencingToken::new(-1), Err(InvalidToken));
        assert_eq!(FencingToken::new(1), Ok(FencingToken::MIN));
        assert_eq!(FencingToken::new(MAX_TOKEN), Ok(FencingToken::MAX));
        assert_eq!(FencingToken::new(MAX_TOKEN + 1), Err(InvalidToken));
    }

    #[test]
    fn the_last_token_has_no_next() {
        assert_eq!(FencingToken::MIN.checked_next(), FencingToken::new(2).ok());
        assert_eq!(FencingToken::MAX.checked_next(), None);
    }

    #[test]
    fn text_is_read_only_as_it_is_written() {
        assert_eq!("41".parse(), FencingToken::new(41));
        for wrong in [
            "",
            "0",
            "041",
            "+41",
            "-1",
            " 41",
            "41 ",
            "4e1",
            "9007199254740992",
            "99999999999999999999",
        ] {
            assert_eq!(
                wrong.parse::<FencingToken>(),
                Err(InvalidToken),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn json_is_checked_like_everything_else() {
        assert_eq!(
            serde_json::to_string(&FencingToken::MAX).unwrap(),
            "9007199254740991"
        );
        assert!(serde_json::from_str::<FencingToken>("0").is_err());
        assert!(serde_json::from_str::<FencingToken>("\"7\"").is_err());
    }
}

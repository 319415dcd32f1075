//! A part of a state that is shared between states, and hashed once.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

#[derive(Debug)]
pub struct Part<T> {
    value: Arc<T>,
    hash: u64,
}

impl<T: Hash> Part<T> {
    pub fn new(value: T) -> Self {
        let mut hasher = DefaultHasher::new();
        value.hash(&mut hasher);
        Self {
            value: Arc::new(value),
            hash: hasher.finish(),
        }
    }
}

impl<T: Hash + Clone> Part<T> {
    pub fn edit(&mut self, edit: impl FnOnce(&mut T)) {
        let mut value = (*self.value).clone();
        edit(&mut value);
        *self = Self::new(value);
    }
}

impl<T> Clone for Part<T> {
    fn clone(&self) -> Self {
        Self {
            value: self.value.clone(),
            hash: self.hash,
        }
    }
}

impl<T> Deref for Part<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: PartialEq> PartialEq for Part<T> {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
            && (Arc::ptr_eq(&self.value, &other.value) || *self.value == *other.value)
    }
}

impl<T: Eq> Eq for Part<T> {}

impl<T> Hash for Part<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

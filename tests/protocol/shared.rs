//! Parts that most steps leave as they are: states share them, and a copy is made of what is changed.

use std::cell::OnceCell;
use std::fmt::{Debug, Formatter, Result};
use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut, Index, IndexMut};
use std::rc::Rc;

use super::explore::fingerprint;

/// A part of a state. Its fingerprint is computed once for all states that share it.
pub struct Part<T>(Rc<Held<T>>);

struct Held<T> {
    value: T,
    fingerprint: OnceCell<u128>,
}

impl<T> From<T> for Part<T> {
    fn from(value: T) -> Self {
        Self(Rc::new(Held { value, fingerprint: OnceCell::new() }))
    }
}

impl<T> Clone for Part<T> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<T: Clone> Clone for Held<T> {
    fn clone(&self) -> Self {
        Self { value: self.value.clone(), fingerprint: OnceCell::new() }
    }
}

impl<T: Debug> Debug for Part<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.0.value.fmt(f)
    }
}

impl<T: Hash> Hash for Part<T> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u128(*self.0.fingerprint.get_or_init(|| fingerprint(&self.0.value)));
    }
}

impl<T> Deref for Part<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T: Clone> DerefMut for Part<T> {
    fn deref_mut(&mut self) -> &mut T {
        let held = Rc::make_mut(&mut self.0);
        held.fingerprint.take();
        &mut held.value
    }
}

/// Several parts of a kind.
#[derive(Debug, Clone, Hash)]
pub struct Shared<T>(Vec<Part<T>>);

impl<T: Clone> Shared<T> {
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().map(|part| &mut **part)
    }
}

impl<T> FromIterator<T> for Shared<T> {
    fn from_iter<I: IntoIterator<Item = T>>(parts: I) -> Self {
        Self(parts.into_iter().map(Part::from).collect())
    }
}

impl<T> Deref for Shared<T> {
    type Target = [Part<T>];

    fn deref(&self) -> &[Part<T>] {
        &self.0
    }
}

impl<T> Index<usize> for Shared<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        &self.0[index]
    }
}

impl<T: Clone> IndexMut<usize> for Shared<T> {
    fn index_mut(&mut self, index: usize) -> &mut T {
        &mut self.0[index]
    }
}

//! Lets several states share identical parts, because each step changes only a few parts of a state.
//!
//! Millions of states consist of only some thousands of different parts, and a pool stores each different part once.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::fmt::{Debug, Formatter, Result};
use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut, Index, IndexMut};
use std::rc::Rc;

use super::explore::{ByFingerprint, Fingerprint};

/// A part that several states share, so that its hash (fingerprint) is computed only once.
pub struct Part<T>(Rc<Held<T>>);

struct Held<T> {
    value: T,
    fingerprint: OnceCell<Fingerprint>,
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

impl<T: Hash> Part<T> {
    fn fingerprint(&self) -> Fingerprint {
        *self.0.fingerprint.get_or_init(|| Fingerprint::of(&self.0.value))
    }
}

impl<T: PartialEq> Part<T> {
    pub fn set(&mut self, value: T) {
        if **self != value {
            *self = value.into();
        }
    }
}

impl<T: PartialEq> PartialEq for Part<T> {
    fn eq(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0) || **self == **other
    }
}

impl<T: Eq> Eq for Part<T> {}

impl<T: Debug> Debug for Part<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.0.value.fmt(f)
    }
}

impl<T: Hash> Hash for Part<T> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.fingerprint().hash(hasher);
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

pub struct Pool<T>(HashMap<Fingerprint, Part<T>, ByFingerprint>);

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<T: Hash> Pool<T> {
    pub fn share(&mut self, part: &mut Part<T>) {
        if Rc::strong_count(&part.0) == 1 {
            *part = self.0.entry(part.fingerprint()).or_insert_with(|| part.clone()).clone();
        }
    }

    pub fn share_all<const MOST: usize>(&mut self, parts: &mut Shared<T, MOST>) {
        parts.0.iter_mut().flatten().for_each(|part| self.share(part));
    }
}

/// Several parts of a state.
#[derive(Clone)]
pub struct Shared<T, const MOST: usize>([Option<Part<T>>; MOST]);

impl<T, const MOST: usize> Shared<T, MOST> {
    pub fn len(&self) -> usize {
        self.0.iter().flatten().count()
    }

    pub fn get(&self, index: usize) -> Option<&T> {
        self.0.get(index)?.as_deref()
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten().map(|part| &**part)
    }
}

impl<T: Clone, const MOST: usize> Shared<T, MOST> {
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().flatten().map(|part| &mut **part)
    }
}

impl<T, const MOST: usize> FromIterator<T> for Shared<T, MOST> {
    fn from_iter<I: IntoIterator<Item = T>>(parts: I) -> Self {
        let mut shared = Self([const { None }; MOST]);
        parts.into_iter().enumerate().for_each(|(index, part)| shared.0[index] = Some(part.into()));
        shared
    }
}

impl<T: Debug, const MOST: usize> Debug for Shared<T, MOST> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T: Hash, const MOST: usize> Hash for Shared<T, MOST> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.iter().flatten().for_each(|part| part.hash(hasher));
    }
}

impl<T, const MOST: usize> Index<usize> for Shared<T, MOST> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        self.0[index].as_deref().expect("the index is in range")
    }
}

impl<T: Clone, const MOST: usize> IndexMut<usize> for Shared<T, MOST> {
    fn index_mut(&mut self, index: usize) -> &mut T {
        self.0[index].as_deref_mut().expect("the index is in range")
    }
}

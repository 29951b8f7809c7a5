//! A serde enum in its default (externally tagged) representation, taken apart: the name of the variant becomes the
//! type of the event, and the content of the variant becomes its data.
//!
//! Why: the name on disk is then what `#[serde(rename)]` says, the data is easy to read in SQL, and no intermediate
//! tree is built, because the content goes straight to the serializer of the format.
//! Invariants: a value that is not such an enum is refused, never stored in some other form; a name without a variant
//! is told apart from content that cannot be read.
//! Not here: the formats (`json`, `cbor`).

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeSeed, Deserializer, EnumAccess, VariantAccess, Visitor};
use serde::ser::{self, Impossible, SerializeStruct, SerializeTuple, Serializer};
use serde::{Deserialize, Serialize};

/// The reason why a type cannot be an event.
pub(super) const NOT_AN_ENUM: &str =
    "the event type must be an enum in serde's default (externally tagged) representation";

// ---------------------------------------------------------------------------------------------------------- writing

/// The content of an event. Serializing it also leaves the name of the variant in `name`.
pub(super) struct Content<'a, E> {
    pub(super) event: &'a E,
    pub(super) name: &'a Cell<Option<&'static str>>,
}

impl<E: Serialize> Serialize for Content<'_, E> {
    fn serialize<S: Serializer>(&self, inner: S) -> Result<S::Ok, S::Error> {
        self.event.serialize(ContentSerializer {
            inner,
            name: self.name,
        })
    }
}

struct ContentSerializer<'a, S> {
    inner: S,
    name: &'a Cell<Option<&'static str>>,
}

/// The parts of a tuple or struct variant, which are passed on as those of a tuple or struct.
struct VariantParts<T>(T);

impl<T: SerializeTuple> ser::SerializeTupleVariant for VariantParts<T> {
    type Ok = T::Ok;
    type Error = T::Error;

    fn serialize_field<V: Serialize + ?Sized>(&mut self, value: &V) -> Result<(), T::Error> {
        self.0.serialize_element(value)
    }

    fn end(self) -> Result<T::Ok, T::Error> {
        self.0.end()
    }
}

impl<T: SerializeStruct> ser::SerializeStructVariant for VariantParts<T> {
    type Ok = T::Ok;
    type Error = T::Error;

    fn serialize_field<V: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &V,
    ) -> Result<(), T::Error> {
        self.0.serialize_field(key, value)
    }

    fn skip_field(&mut self, key: &'static str) -> Result<(), T::Error> {
        self.0.skip_field(key)
    }

    fn end(self) -> Result<T::Ok, T::Error> {
        self.0.end()
    }
}

fn refuse<T, E: ser::Error>() -> Result<T, E> {
    Err(E::custom(NOT_AN_ENUM))
}

macro_rules! refuse_values {
    ($($method:ident: $type:ty,)*) => {
        $(fn $method(self, _: $type) -> Result<S::Ok, S::Error> { refuse() })*
    };
}

impl<S: Serializer> Serializer for ContentSerializer<'_, S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Impossible<S::Ok, S::Error>;
    type SerializeTuple = Impossible<S::Ok, S::Error>;
    type SerializeTupleStruct = Impossible<S::Ok, S::Error>;
    type SerializeTupleVariant = VariantParts<S::SerializeTuple>;
    type SerializeMap = Impossible<S::Ok, S::Error>;
    type SerializeStruct = Impossible<S::Ok, S::Error>;
    type SerializeStructVariant = VariantParts<S::SerializeStruct>;

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }

    /// Writes an empty object, so that every event of named fields is an object and fields can be added later.
    fn serialize_unit_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
    ) -> Result<S::Ok, S::Error> {
        self.name.set(Some(variant));
        self.inner.serialize_struct(variant, 0)?.end()
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.name.set(Some(variant));
        value.serialize(self.inner)
    }

    fn serialize_tuple_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleVariant, S::Error> {
        self.name.set(Some(variant));
        self.inner.serialize_tuple(len).map(VariantParts)
    }

    fn serialize_struct_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeStructVariant, S::Error> {
        self.name.set(Some(variant));
        self.inner.serialize_struct(variant, len).map(VariantParts)
    }

    /// Serializes the enum that is inside a wrapper.
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        value.serialize(self)
    }

    refuse_values! {
        serialize_bool: bool,
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64, serialize_i128: i128,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64, serialize_u128: u128,
        serialize_f32: f32, serialize_f64: f64,
        serialize_char: char, serialize_str: &str, serialize_bytes: &[u8],
        serialize_unit_struct: &'static str,
    }

    fn serialize_none(self) -> Result<S::Ok, S::Error> {
        refuse()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, _: &T) -> Result<S::Ok, S::Error> {
        refuse()
    }

    fn serialize_unit(self) -> Result<S::Ok, S::Error> {
        refuse()
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self::SerializeSeq, S::Error> {
        refuse()
    }

    fn serialize_tuple(self, _: usize) -> Result<Self::SerializeTuple, S::Error> {
        refuse()
    }

    fn serialize_tuple_struct(
        self,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleStruct, S::Error> {
        refuse()
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap, S::Error> {
        refuse()
    }

    fn serialize_struct(
        self,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStruct, S::Error> {
        refuse()
    }
}

// ---------------------------------------------------------------------------------------------------------- reading

/// The reason why a name and its content are no event.
#[derive(Debug)]
pub enum ReadError<F> {
    /// The enum has no variant of this name.
    UnknownName,
    /// The type is no enum in the default representation.
    NotAnEnum,
    /// The format says that the content is not that of the variant.
    Content(F),
}

impl<F: ToString> ReadError<F> {
    /// Turns the error of the format into its text.
    pub(super) fn in_words(self) -> ReadError<String> {
        match self {
            Self::UnknownName => ReadError::UnknownName,
            Self::NotAnEnum => ReadError::NotAnEnum,
            Self::Content(error) => ReadError::Content(error.to_string()),
        }
    }
}

/// Reads the event with this name from the content that `content` holds.
pub(super) fn read<'de, E, D>(name: &str, content: D) -> Result<E, ReadError<D::Error>>
where
    E: Deserialize<'de>,
    D: Deserializer<'de>,
{
    E::deserialize(Tagged { name, content })
}

impl<F: fmt::Display> fmt::Display for ReadError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::UnknownName => f.write_str("unknown name"),
            ReadError::NotAnEnum => f.write_str(NOT_AN_ENUM),
            ReadError::Content(error) => error.fmt(f),
        }
    }
}

impl<F: std::error::Error> std::error::Error for ReadError<F> {}

impl<F: de::Error> de::Error for ReadError<F> {
    fn custom<T: fmt::Display>(message: T) -> Self {
        ReadError::Content(F::custom(message))
    }
}

/// A name and its content, which are read as an enum.
struct Tagged<'n, D> {
    name: &'n str,
    content: D,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Tagged<'_, D> {
    type Error = ReadError<D::Error>;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(ReadError::NotAnEnum)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_enum(self)
    }

    /// Deserializes the enum that is inside a wrapper.
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_newtype_struct(self)
    }

    fn is_human_readable(&self) -> bool {
        self.content.is_human_readable()
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        seq tuple tuple_struct map struct identifier ignored_any
    }
}

impl<'de, D: Deserializer<'de>> EnumAccess<'de> for Tagged<'_, D> {
    type Error = ReadError<D::Error>;
    type Variant = VariantContent<D>;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Self::Variant), Self::Error> {
        let variant = seed
            .deserialize(StrDeserializer::<NameRefused>::new(self.name))
            .map_err(|NameRefused| ReadError::UnknownName)?;
        Ok((variant, VariantContent(self.content)))
    }
}

/// The content of a variant that exists.
struct VariantContent<D>(D);

impl<'de, D: Deserializer<'de>> VariantAccess<'de> for VariantContent<D> {
    type Error = ReadError<D::Error>;

    fn unit_variant(self) -> Result<(), Self::Error> {
        self.0.deserialize_any(Nothing).map_err(ReadError::Content)
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(
        self,
        seed: T,
    ) -> Result<T::Value, Self::Error> {
        seed.deserialize(self.0).map_err(ReadError::Content)
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.0
            .deserialize_tuple(len, visitor)
            .map_err(ReadError::Content)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.0
            .deserialize_struct("", fields, visitor)
            .map_err(ReadError::Content)
    }
}

/// The content of a unit variant: `null`, or an object whose fields are ignored.
struct Nothing;

impl<'de> Visitor<'de> for Nothing {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or null")
    }

    fn visit_unit<F>(self) -> Result<(), F> {
        Ok(())
    }

    fn visit_none<F>(self) -> Result<(), F> {
        Ok(())
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map
            .next_entry::<de::IgnoredAny, de::IgnoredAny>()?
            .is_some()
        {}
        Ok(())
    }
}

/// The enum has refused the name of a variant.
#[derive(Debug)]
struct NameRefused;

impl fmt::Display for NameRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown name")
    }
}

impl std::error::Error for NameRefused {}

impl de::Error for NameRefused {
    fn custom<T: fmt::Display>(_: T) -> Self {
        NameRefused
    }
}

// ----------------------------------------------------------------------------------------------------------- asking

/// Returns the names from which the enum `E` can be read, aliases included; `None` if it is no such enum.
pub(super) fn names_of<E: de::DeserializeOwned>() -> Option<&'static [&'static str]> {
    match E::deserialize(Question(PhantomData)) {
        Err(Answer::Names(names)) => Some(names),
        Err(Answer::Other) | Ok(_) => None,
    }
}

/// A deserializer that gives no value: it learns what it is asked for.
struct Question<'de>(PhantomData<&'de ()>);

#[derive(Debug)]
enum Answer {
    Names(&'static [&'static str]),
    Other,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("only the names were asked for")
    }
}

impl std::error::Error for Answer {}

impl de::Error for Answer {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Answer::Other
    }
}

impl<'de> Deserializer<'de> for Question<'de> {
    type Error = Answer;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Answer> {
        Err(Answer::Other)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Answer> {
        Err(Answer::Names(variants))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Answer> {
        visitor.visit_newtype_struct(self)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        seq tuple tuple_struct map struct identifier ignored_any
    }
}

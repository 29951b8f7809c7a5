//! The listing of a crate's public interface.

use std::collections::BTreeMap;
use std::path::Path;

use syn::{Attribute, Fields, ImplItem, Item, ItemImpl, TraitItem, Type, Visibility};

use crate::source::{Module, Source, cfg, named, uses};

/// Lists what a crate makes public: for each name its definition without comments and bodies, and what is implemented
/// for it.
pub(crate) fn of(of_crate: &str, root: &Path) -> String {
    let mut listing = Listing {
        source: Source::new(root),
        entries: BTreeMap::new(),
    };
    let module = Module {
        of_crate: of_crate.to_owned(),
        path: Vec::new(),
    };
    listing.list(&module, of_crate, &[]);
    let texts = listing
        .entries
        .into_iter()
        .map(|(name, text)| format!("== {name}\n{text}"));
    texts.collect::<Vec<String>>().join("\n")
}

struct Listing {
    source: Source,
    entries: BTreeMap<String, String>,
}

impl Listing {
    /// Lists what a module makes public, under this path.
    fn list(&mut self, module: &Module, path: &str, cfg_before: &[Attribute]) {
        let Some(items) = self.source.items(module) else {
            return;
        };
        for item in items.iter() {
            if is_public(item) && !is_hidden(item) {
                let name = named(item).unwrap_or_default();
                self.define(module, item, &format!("{path}::{name}"), cfg_before);
            }
            for used in uses(item).into_iter().filter(|used| used.is_public) {
                let cfg = [cfg_before, &used.cfg].concat();
                let Some(name) = used.name else {
                    if let Some(from) = self.source.module_at(module, &used.path) {
                        self.list(&from, path, &cfg);
                    }
                    continue;
                };
                let path = format!("{path}::{name}");
                // A crate or a module as a whole.
                if let Some(whole) = self.source.module_at(module, &used.path) {
                    self.list(&whole, &path, &cfg);
                    continue;
                }
                let Some((original, from)) = used.path.split_last() else {
                    continue;
                };
                let Some(from) = self.source.module_at(module, from) else {
                    // Of another project.
                    let name = used.path.join("::");
                    self.entries.insert(path, format!("// {name}\n"));
                    continue;
                };
                match self.source.definition(&from, original) {
                    Some((at, item)) => self.define(&at, &item, &path, &cfg),
                    // A macro has made it.
                    None => {
                        let text = shown(self.implementations(&from, original, false));
                        let name = used.path.join("::");
                        self.entries.insert(path, format!("// {name}\n{text}"));
                    }
                }
            }
        }
    }

    fn define(&mut self, at: &Module, item: &Item, path: &str, cfg_before: &[Attribute]) {
        if let Item::Mod(inner) = item {
            let mut module = at.clone();
            module.path.push(inner.ident.to_string());
            let cfg = [cfg_before, &cfg(&inner.attrs)].concat();
            return self.list(&module, path, &cfg);
        }
        let mut items = vec![bare(item.clone())];
        if let Some(name) = named(item)
            && !matches!(item, Item::Fn(_) | Item::Const(_))
        {
            items.extend(self.implementations(at, &name, true));
        }
        let mut text: String = cfg_before.iter().map(shown_attribute).collect();
        text.push_str(&shown(items));
        self.entries.insert(path.to_owned(), text);
    }

    /// Returns what the crate implements for a type that is defined in this module, or that a macro has made.
    fn implementations(&mut self, at: &Module, name: &str, is_defined: bool) -> Vec<Item> {
        let mut found = Vec::new();
        for module in self.source.modules_of(&at.of_crate) {
            let Some(items) = self.source.items(&module) else {
                continue;
            };
            for item in items.iter() {
                let Item::Impl(of) = item else { continue };
                let is_for_it = self_name(of).is_some_and(|own| {
                    own == name
                        && match self.source.definition(&module, &own) {
                            Some((defined, _)) => is_defined && defined == *at,
                            None => !is_defined,
                        }
                });
                if is_for_it && let Some(bare) = bare_implementation(of.clone()) {
                    found.push(Item::Impl(bare));
                }
            }
        }
        // Their order in the source, and in which files they are, is not of the interface.
        found.sort_by_cached_key(|item| shown(vec![item.clone()]));
        found
    }
}

fn is_public(item: &Item) -> bool {
    let visibility = match item {
        Item::Const(item) => &item.vis,
        Item::Enum(item) => &item.vis,
        Item::Fn(item) => &item.vis,
        Item::Mod(item) => &item.vis,
        Item::Struct(item) => &item.vis,
        Item::Trait(item) => &item.vis,
        Item::Type(item) => &item.vis,
        _ => return false,
    };
    matches!(visibility, Visibility::Public(_))
}

fn is_hidden(item: &Item) -> bool {
    let attributes = match item {
        Item::Mod(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        _ => return false,
    };
    let is_hidden = |one: &Attribute| {
        one.path().is_ident("doc")
            && one
                .meta
                .require_list()
                .is_ok_and(|list| list.tokens.to_string() == "hidden")
    };
    attributes.iter().any(is_hidden)
}

fn self_name(of: &ItemImpl) -> Option<String> {
    match &*of.self_ty {
        Type::Path(path) => Some(path.path.segments.last()?.ident.to_string()),
        _ => None,
    }
}

/// Keeps the attributes that callers see.
fn seen(attributes: &mut Vec<Attribute>) {
    attributes.retain(|one| {
        ["cfg", "derive", "non_exhaustive"]
            .iter()
            .any(|name| one.path().is_ident(name))
    });
}

fn without_private(fields: &mut Fields) {
    let is_public = |field: &syn::Field| matches!(field.vis, Visibility::Public(_));
    match fields {
        Fields::Named(named) => {
            let kept = std::mem::take(&mut named.named).into_iter();
            named.named = kept.filter(is_public).collect();
        }
        Fields::Unnamed(unnamed) if !unnamed.unnamed.iter().all(is_public) => {
            *fields = Fields::Unit
        }
        Fields::Unnamed(_) | Fields::Unit => {}
    }
    for field in fields.iter_mut() {
        field.attrs.clear();
    }
}

/// Returns an item without comments, bodies, and what is private.
fn bare(mut item: Item) -> Item {
    match &mut item {
        Item::Const(item) => seen(&mut item.attrs),
        Item::Type(item) => seen(&mut item.attrs),
        Item::Fn(item) => {
            seen(&mut item.attrs);
            item.block.stmts.clear();
        }
        Item::Struct(item) => {
            seen(&mut item.attrs);
            without_private(&mut item.fields);
            if matches!(item.fields, Fields::Unit) {
                item.semi_token = Some(Default::default());
            }
        }
        Item::Enum(item) => {
            seen(&mut item.attrs);
            for variant in &mut item.variants {
                variant.attrs.clear();
                variant
                    .fields
                    .iter_mut()
                    .for_each(|field| field.attrs.clear());
            }
        }
        Item::Trait(item) => {
            seen(&mut item.attrs);
            for inner in &mut item.items {
                match inner {
                    TraitItem::Fn(inner) => {
                        seen(&mut inner.attrs);
                        if let Some(body) = &mut inner.default {
                            body.stmts.clear();
                        }
                    }
                    TraitItem::Const(inner) => seen(&mut inner.attrs),
                    TraitItem::Type(inner) => seen(&mut inner.attrs),
                    _ => {}
                }
            }
        }
        _ => {}
    }
    item
}

/// Returns an implementation without what is private; `None` if nothing is left of it.
fn bare_implementation(mut of: ItemImpl) -> Option<ItemImpl> {
    seen(&mut of.attrs);
    let is_test = of
        .attrs
        .iter()
        .any(|one| shown_attribute(one).contains("test"));
    if is_test {
        return None;
    }
    if of.trait_.is_some() {
        // What the trait has is known; that it is there is what counts.
        of.items.retain(|item| matches!(item, ImplItem::Type(_)));
        of.items.iter_mut().for_each(|item| {
            if let ImplItem::Type(item) = item {
                seen(&mut item.attrs);
            }
        });
        return Some(of);
    }
    of.items.retain(|item| match item {
        ImplItem::Fn(item) => matches!(item.vis, Visibility::Public(_)),
        ImplItem::Const(item) => matches!(item.vis, Visibility::Public(_)),
        _ => false,
    });
    for item in &mut of.items {
        match item {
            ImplItem::Fn(item) => {
                seen(&mut item.attrs);
                item.block.stmts.clear();
            }
            ImplItem::Const(item) => seen(&mut item.attrs),
            _ => {}
        }
    }
    (!of.items.is_empty()).then_some(of)
}

fn shown_attribute(attribute: &Attribute) -> String {
    let list = attribute.meta.require_list();
    list.map_or_else(
        |_| String::new(),
        |list| format!("#[cfg({})]\n", list.tokens),
    )
}

fn shown(items: Vec<Item>) -> String {
    prettyplease::unparse(&syn::File {
        shebang: None,
        attrs: Vec::new(),
        items,
    })
}

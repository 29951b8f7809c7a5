/**
 * Options as callers write them, who need not have a compiler: one that is not known is refused, for else a mistyped
 * claim (`expectd`) would be none, and nothing would tell.
 */

/** The names of all options of a kind. The compiler holds them against the kind. */
export type Names<Options> = { readonly [Name in keyof Required<Options>]: true };

/**
 * Returns the options, all of which are known. `of` says whose they are. An option that is not defined is absent.
 *
 * Throws a `TypeError` that names the first one that is not known, and those that are.
 */
export function checked<Options extends object>(of: string, given: Options, names: Names<Options>): Options {
  if (given === null || typeof given !== "object" || Array.isArray(given)) {
    throw new TypeError(`the options of ${of} must be an object such as { ${Object.keys(names)[0]}: … }`);
  }
  const unknown = Object.entries(given).find(([name, value]) => value !== undefined && !Object.hasOwn(names, name));
  if (unknown !== undefined) {
    throw new TypeError(`${of} has no option ${unknown[0]}: the options are ${Object.keys(names).join(", ")}`);
  }
  return given;
}

// Package dump reads and writes rulesets as JSON: "ruledump live -o json" prints them, and "--dump FILE" reads them.
//
// Names, keys, values and rules are the text that nft writes, so that jq and people can look things up; reading
// parses that text again. A statement that this project does not know is kept by its name, as "unknown-NAME".
package dump

// APIVersion is the version of all JSON that ruledump writes. A change that a reader can ignore, such as one more
// field, does not change it.
const APIVersion = "ruledump.nftproxy/v1"

// Kind is the kind of a Document.
const Kind = "Ruleset"

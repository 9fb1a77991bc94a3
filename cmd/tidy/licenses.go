package tidy

import "strings"

// knownLicenses are the licences that modules linked into the server may have, with
// words that only their texts contain. The first match counts.
var knownLicenses = []struct {
	name  string
	words []string
}{
	{"Apache-2.0", []string{"Apache License", "Version 2.0"}},
	{"MPL-2.0", []string{"Mozilla Public License", "2.0"}},
	{"BSD-3-Clause", []string{"Redistribution and use in source and binary forms", "Neither the name"}},
	{"BSD-2-Clause", []string{"Redistribution and use in source and binary forms"}},
	{"MIT", []string{"Permission is hereby granted, free of charge", "The above copyright notice and this permission notice"}},
}

// isLicense reports whether a file in a module's root is its licence.
func isLicense(name string) bool {
	name, _, _ = strings.Cut(strings.ToLower(name), ".")
	return name == "license" || name == "licence" || name == "copying"
}

// licenseOf returns the name of the licence with a text; empty if it is not known.
func licenseOf(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	for _, l := range knownLicenses {
		has := true
		for _, w := range l.words {
			has = has && strings.Contains(strings.ToLower(text), strings.ToLower(w))
		}
		if has {
			return l.name
		}
	}
	return ""
}

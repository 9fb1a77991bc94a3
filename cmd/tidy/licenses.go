package tidy

import "strings"

// knownLicenses are the licences that what the server is linked from may have,
// with words that only their texts hold. The first one that fits counts.
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

// isLicense reports whether a file of a module's root holds its licence.
func isLicense(name string) bool {
	name, _, _ = strings.Cut(strings.ToLower(name), ".")
	return name == "license" || name == "licence" || name == "copying"
}

// licenseOf names the licence of a text; empty: it is none of the known ones.
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

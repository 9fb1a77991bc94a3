package tidy

import (
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/quorate/quorate/cmd/tidy/page"
)

// link is a link or an image in prose; the group is its target.
var link = regexp.MustCompile(`\]\(([^()\s]+)\)`)

// elsewhere is the beginning of a link that leaves the repository.
var elsewhere = regexp.MustCompile(`^(https?|mailto):`)

// heading is a heading of a page; the group is its text.
var heading = regexp.MustCompile(`(?m)^#{1,6} +(.*?) *$`)

// checkLinks finds links of pages in Markdown that lead to no file, or to a heading that is not there.
func checkLinks(tree fs.FS, pages map[string]string) []breach {
	var found []breach
	for name, text := range pages {
		for i, line := range strings.Split(page.Prose(text), "\n") {
			for _, m := range link.FindAllStringSubmatch(line, -1) {
				if elsewhere.MatchString(m[1]) {
					continue
				}
				if why := brokenLink(tree, name, text, m[1]); why != "" {
					found = append(found, breach{fmt.Sprintf("%s:%d", name, i+1), m[1] + ": " + why})
				}
			}
		}
	}
	return found
}

// brokenLink returns why a link from a page leads nowhere; empty if it leads somewhere.
func brokenLink(tree fs.FS, from, text, target string) string {
	file, anchor, _ := strings.Cut(target, "#")
	file, err := url.PathUnescape(file)
	if err != nil {
		return err.Error()
	}
	if file != "" {
		content, err := fs.ReadFile(tree, path.Join(path.Dir(from), file))
		if err != nil {
			return "no such file"
		}
		text = string(content)
	}
	if anchor != "" && !slices.Contains(anchors(text), anchor) {
		return "no such heading"
	}
	return ""
}

// anchors are the names of the headings of a page, as forges give them.
func anchors(text string) []string {
	var names []string
	seen := map[string]int{}
	for _, m := range heading.FindAllStringSubmatch(withoutBlocks(text), -1) {
		name := anchor(m[1])
		if n := seen[name]; n > 0 {
			names = append(names, fmt.Sprintf("%s-%d", name, n))
		} else {
			names = append(names, name)
		}
		seen[name]++
	}
	return names
}

// withoutBlocks is a page without the lines that a fence holds, some of which look like headings.
func withoutBlocks(text string) string {
	parts := strings.Split(text, "\n```")
	var b strings.Builder
	for i := 0; i < len(parts); i += 2 {
		b.WriteString(parts[i] + "\n")
	}
	return b.String()
}

// anchor is the name of a heading.
func anchor(text string) string {
	text = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`).ReplaceAllString(text, "$1")
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		default:
			return -1
		}
	}, text)
}

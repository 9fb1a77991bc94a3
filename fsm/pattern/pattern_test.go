package pattern

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestAgainstPeer: patterns mean what they mean to RabbitMQ, of which testdata/peer.txt
// has the answers. What is not supported may be refused.
func TestAgainstPeer(t *testing.T) {
	f, err := os.Open("testdata/peer.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var want, text, name string
		if line := lines.Text(); strings.HasPrefix(line, "#") {
			continue
		} else if _, err := fmt.Sscanf(line, "%s %q %q", &want, &text, &name); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		rows++
		got := "error"
		p, err := Compile(text)
		if err != nil && want != "error" && strings.Contains(err.Error(), "not supported") {
			continue
		}
		if err == nil {
			got = map[bool]string{true: "match", false: "nomatch"}[p.Match(name)]
		}
		if got != want {
			t.Errorf("%q, %q: %s (%v), the peer says %s", text, name, got, err, want)
		}
	}
	if rows < 1500 {
		t.Errorf("only %d rows", rows)
	}
}

// TestRefused: what is no pattern, and what is not supported, is refused where it
// stands.
func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		"(":                      "missing ) at offset 0",
		"a)":                     "unmatched ) at offset 1",
		"ab[c":                   "missing ] at offset 2",
		"a**":                    "a quantifier follows nothing that can be repeated at offset 2",
		"x|+":                    "a quantifier follows nothing that can be repeated at offset 2",
		"a{3,2}":                 "the numbers of repetitions are out of order at offset 1",
		"a{70000}":               "the number of repetitions is larger than 65535 at offset 1",
		`a\`:                     `\ at the end of the pattern at offset 1`,
		`(a)\2`:                  "reference to a group that is not there at offset 3",
		`^(?<!a+)b`:              "the length of the look-behind is not limited at offset 1",
		`(a)(?<=\1)`:             "a back-reference in a look-behind is not supported at offset 7",
		"a(?R)":                  "this kind of group is not supported at offset 3",
		"a(?(1)b|c)":             "this kind of group is not supported at offset 3",
		"(*UTF8)a":               "verbs are not supported at offset 0",
		`(a)\g<1>`:               "subroutines are not supported at offset 3",
		`^\p{L}`:                 `\p is not supported at offset 1`,
		"^a(b{1000}){5}":         "the pattern has more than 4096 parts, counted with their repetitions, at offset 3",
		strings.Repeat("(", 300): "more than 250 groups within each other at offset 250",
		"(?<n>a)(?<n>b)":         "two groups have the name n at offset 7",
		"[z-a]":                  "a range in a class is out of order at offset 1",
		"[[:letter:]]":           "no class has the name letter at offset 1",
		`\x{100}`:                "the code is not that of a byte at offset 0",
		strings.Repeat("(?:", 200) + strings.Repeat("){65535}", 200): "",
	} {
		_, err := Compile(text)
		if got := fmt.Sprint(err); got != want && (err != nil || want != "") {
			t.Errorf("%.40q: %s, want %s", text, got, want)
		}
		var place *Error
		if err != nil && !errors.As(err, &place) {
			t.Errorf("%.40q: an error without a place: %v", text, err)
		}
	}
}

// TestSteps: a match takes these steps. They are part of what the machine does: a
// number here changes only with a version of the machine.
func TestSteps(t *testing.T) {
	long := strings.Repeat("a", 255)
	for _, c := range []struct {
		text, name string
		found      bool
		steps      int
	}{
		{"", "orders", true, 1},
		{".*", long, true, 1},
		{"^(?!amq\\.).*", "orders.eu.invoices", true, 4},
		{"^(?!amq\\.).*", "amq.gen-x", false, 7},
		{"^(?!(amq|mqtt)\\.|.*\\.dlq$).+", "orders.eu.invoices", true, 22},
		{"^((?!retry).)*$", "orders.eu.invoices", true, 99},
		{"^.*(?<!-dlq)$", long, true, 69},
		// what has succeeded within a look-ahead is tried again from elsewhere
		{"^(?:(?=a*b)a)+b$", "aaab", true, 29},
		// what fails in a look-behind is tried again from another place
		{"^(?:(?<=ab|c)!|[ab])+$", "ab!", true, 41},
		// what a group has matched in an attempt that failed is forgotten
		{`^(?:(?=(a+))\1b|a)+c\1$`, "aaabacaaa", true, 46},
		// exponential for a matcher that forgets where it has been
		{"^(?=a)(a+)+$", long + "b", false, 9534},
		{"^(?!(a|aa)+$)", long + "b", true, 2552},
		{"(?!x)(a*)*(a*)*(a*)*b", long, false, 28800},
		// more than it may: it gives up, and the name does not match
		{"^(((a?){20}){20}){5}(?=b)", long, false, 131306},
		{`^(a+)+\1(?!b)c$`, long, false, 131079},
		{`(?!(a|b\1)+c)(?<=d)(.*)*\1`, long, false, 131229},
	} {
		p, err := Compile(c.text)
		if err != nil {
			t.Fatal(c.text, err)
		}
		if found, steps := p.Find(c.name); found != c.found || steps != c.steps {
			t.Errorf("%q, %.20q: %v after %d steps, want %v after %d", c.text, c.name, found, steps, c.found, c.steps)
		}
	}
}

// FuzzCompile: no text and no name does harm, and no match takes many more steps
// than it may.
func FuzzCompile(f *testing.F) {
	for _, text := range []string{"^(?!amq\\.).*", "(?<=a|bc)d\\1(x)", "[[:alpha:]-\\]]{2,}+", "\\Qa\\E(?i:b)", "(?>a*)*?\\x{41}"} {
		f.Add(text, "orders\n")
	}
	f.Fuzz(func(t *testing.T, text, name string) {
		if len(text) > 1024 || len(name) > 255 {
			return
		}
		p, err := Compile(text)
		if err != nil {
			if e := new(Error); !errors.As(err, &e) || e.At > len(text) {
				t.Fatal(err)
			}
			return
		}
		if _, steps := p.Find(name); steps > 2*MaxSteps {
			t.Fatal(steps)
		}
	})
}

func BenchmarkMatch(b *testing.B) {
	for _, text := range []string{"^orders", "^(?!amq\\.).*", "^(?!(amq|mqtt)\\.|.*\\.dlq$).+", `^(a+)+\1(?!b)c$`} {
		p, err := Compile(text)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(strconv.Quote(text), func(b *testing.B) {
			steps := 0
			for b.Loop() {
				_, steps = p.Find("orders.europe.invoices-aaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
			}
			b.ReportMetric(float64(steps), "steps/op")
		})
	}
}

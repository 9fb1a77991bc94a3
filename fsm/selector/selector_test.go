package selector

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
)

// fields is a message; names have the prefixes of sections.
type fields map[string]any

func (f fields) Field(s Section, name string) Value {
	switch v := f[string("ahpm"[s])+"."+name].(type) {
	case bool:
		return BoolOf(v)
	case int:
		return IntOf(int64(v))
	case float64:
		return FloatOf(v)
	case string:
		return TextOf(v)
	}
	return Value{}
}

var red = fields{
	"a.colour": "red", "a.n": 5, "a.f": 2.5, "a.yes": true, "a.no": false, "a.dotted.name": 1, "a.max": math.MaxInt64, "a.quote": "it's", "a.percent": "50%",
	"a.under": "a_b", "a.$x": 1, "a.größe": "ä", "h.priority": 4, "p.subject": "s", "p.message_id": "id-1", "m.x_shape": "round",
}

func TestMatches(t *testing.T) {
	for text, want := range map[string]bool{
		"colour = 'red'": true, "colour <> 'red'": false, "colour != 'blue'": true, "COLOUR = 'red'": false, "quote = 'it''s'": true, "größe = 'ä'": true,
		"n = 5": true, "n = 5.0": true, "n < 5": false, "n <= 5": true, "n > 4.5 and n >= 5": true, "f = 2.5": true, "f*2 = n": true, "n = '5'": false,
		"n + 2 * 3 = 11": true, "(n + 2) * 3 = 21": true, "n - 1 - 1 = 3": true, "-n = -5": true, "- -n = 5": true, "+n = 5": true, "n / 2 = 2": true, "n / 2.0 = 2.5": true, "n % 3 = 2": true,
		"n / 0 = 0": false, "n / 0 IS NULL": true, "max + 1 IS NULL": true, "max + 1.0 > 1e18": true, "max * 2 is null": true, "colour + 1 IS NULL": true, "-max = -9223372036854775807": true,
		"n = 0x5": true, "n = 05": true, "n = 5L": true, "f = 2.5d": true, "f = 25e-1": true, "f = .25E+1": true, "n = 5f": true,
		"yes": true, "no": false, "NOT no": true, "NOT NOT yes": true, "NOT NOT n": false, "yes = TRUE": true, "no = false": true, "colour": false, "5": false, "TRUE": true,
		"missing = 1": false, "NOT missing = 1": false, "missing = 1 OR yes": true, "missing = 1 AND no": false, "NOT (missing = 1 AND no)": true, "NOT (missing = 1 AND yes)": false,
		"missing <> 1": false, "missing IS NULL": true, "missing IS NOT NULL": false, "colour IS NOT NULL": true, "missing = missing": false,
		"yes OR no AND no": true, "(yes OR no) AND no": false, "NOT no AND yes": true,
		"n BETWEEN 1 AND 5": true, "n NOT BETWEEN 1 AND 5": false, "n BETWEEN 6 AND 9": false, "n BETWEEN missing AND 4": false, "NOT n BETWEEN missing AND 4": true, "colour BETWEEN 1 AND 2": false,
		"colour IN ('blue', 'red')": true, "colour NOT IN ('blue', 'red')": false, "colour IN ('blue')": false, "colour NOT IN ('blue')": true, "missing NOT IN ('blue')": false, "n IN (1, 2+3)": true,
		"colour NOT IN ('blue', missing)": false, "colour IN ('red', missing)": true,
		"colour LIKE 'r%'": true, "colour LIKE '_e_'": true, "colour LIKE 're'": false, "colour NOT LIKE 'b%'": true, "colour LIKE '%'": true, "colour LIKE ''": false, "colour LIKE '%e%d%'": true, "colour LIKE '%ed%e'": false,
		"percent LIKE '50!%' ESCAPE '!'": true, "percent LIKE '5!%' ESCAPE '!'": false, "under LIKE 'a\\_b' ESCAPE '\\'": true, "größe LIKE '_'": true, "n LIKE '5'": false, "n NOT LIKE '5'": false, "missing NOT LIKE 'x'": false,
		"colour < 'z'": false, "NOT colour < 'z'": false, "yes = 1": false, "colour = yes": false, "colour <> yes": false,
		"h.priority = 4": true, "header.priority > 3": true, "p.subject = 's'": true, "properties.subject LIKE 's'": true, "a.colour = 'red'": true, "application_properties.n = 5": true,
		"m.x_shape = 'round'": true, "dotted.name = 1": true, "$x = 1": true, "p.nothing IS NULL": true, "JMSPriority = 4 AND JMSMessageID = 'id-1' AND JMSType = 's'": true,
		"  colour\n=\t'red'  ": true, "colour='red'and n=5": true, "nOt no": true,
	} {
		s, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if got := s.Matches(red); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

func TestNoSelector(t *testing.T) {
	deep := strings.Repeat("(", maxDepth) + "yes" + strings.Repeat(")", maxDepth)
	for _, text := range []string{
		"", " ", "=", "n =", "= 5", "n = 5 5", "n == 5", "colour = 'red", "colour = \"red\"", "n = 5 AND", "AND", "(n = 5", "n = 5)", "()", "n IN ()", "n IN 5", "n IN (1,)", "n IN (1", "n BETWEEN 1", "n BETWEEN 1 AND",
		"n BETWEEN 1 OR 2", "colour LIKE", "colour LIKE red", "colour LIKE 'a' ESCAPE", "colour LIKE 'a' ESCAPE 'ab'", "colour LIKE 'a!' ESCAPE '!'", "colour LIKE 'a' ESCAPE ''", "n IS 5", "n IS NOT", "n NOT 5", "NOT", "n NOT",
		"NULL", "n = 5x", "n = 0xg", "n = 1_000", "n = 1e", "n = 1.2.3", "n = 1e999", "n = inf", "a ; b", "a = #", "\xff = 1", strings.Repeat("x", MaxLength+1), deep, "n = 99999999999999999999x",
	} {
		if text == "n = inf" { // it is a field
			continue
		}
		if s, err := Parse(text); !errors.Is(err, ErrSyntax) {
			t.Errorf("%q: %v, %v", text, s, err)
		}
	}
	if _, err := Parse(deep[1 : len(deep)-1]); err != nil {
		t.Errorf("not too deep: %v", err)
	}
	if _, err := Parse(strings.Repeat("NOT ", 1000) + "yes" + strings.Repeat(" + - 1", 10)); err != nil {
		t.Errorf("long, not deep: %v", err)
	}
}

// However a pattern and a text are made, a message costs no more than its steps, and what is beyond is no match.
func TestCost(t *testing.T) {
	s, err := Parse("long LIKE '" + strings.Repeat("%a", 1000) + "b' OR NOT long LIKE '" + strings.Repeat("%a", 1000) + "b'")
	if err != nil {
		t.Fatal(err)
	}
	e := evaluation{message: fields{"a.long": strings.Repeat("a", 1<<20)}, left: maxSteps}
	if v := e.value(&s.root); v.kind != Unknown || e.left > 0 {
		t.Errorf("%+v, %d steps are left", v, e.left)
	}
}

// Matching costs no memory.
func TestAllocations(t *testing.T) {
	s, err := Parse("colour IN ('blue', 'red') AND n + 1 > 2 AND p.subject LIKE '%s%'")
	if err != nil || !s.Matches(red) {
		t.Fatal(err)
	}
	m := constant{}
	if n := testing.AllocsPerRun(10, func() { s.Matches(m) }); n > 1 {
		t.Errorf("%v allocations", n)
	}
}

type constant struct{}

func (constant) Field(_ Section, name string) Value {
	if name == "n" {
		return IntOf(5)
	}
	return TextOf("red")
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"colour = 'red' AND n BETWEEN 1 AND 5", "NOT (a LIKE 'x%' ESCAPE '!' OR b IN (1, 2.5e3)) AND c IS NOT NULL", "-h.priority * 2 + p.x / 3 % 1 <> 0x10"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		if once, again := s.Matches(red), s.Matches(red); once != again {
			t.Error(fmt.Sprint(once, again))
		}
	})
}

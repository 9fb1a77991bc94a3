package catalog

import (
	"regexp/syntax"
	"slices"
	"strings"
)

// movers are the keys of policies by which messages go elsewhere than their
// publishers have sent them: those of queues, and those of exchanges.
var movers = struct{ queues, exchanges []string }{
	queues:    []string{"dead-letter-exchange", "dead-letter-routing-key", "forward-to-exchange", "forward-to-routing-key"},
	exchanges: []string{"alternate-exchange"},
}

// covers reports whether every name that matches inner also matches outer, as
// far as that can be told from the texts: outer matches all names, both are the
// same, or both begin with ^ and letters that stand for themselves, outer with no
// more of them than inner and nothing behind but what matches anything.
//
// true is certain, false may be wrong: then an author who could have set the
// policy is refused. Only proposers call it, so it need not be the same on
// every node.
func covers(outer, inner string) bool {
	if p := newPattern(outer); p.all || outer != "" && outer == inner {
		return true
	}
	prefix, rest, ok := beginning(outer)
	if !ok || rest {
		return false
	}
	start, _, ok := beginning(inner)
	return ok && strings.HasPrefix(start, prefix)
}

// beginning returns with what every name begins that a pattern matches; ok false:
// nothing is known. rest: it asks for more than that.
//
// prefix is part of what matches only if ok; "" says nothing. Without rest,
// every name with the prefix matches.
func beginning(pattern string) (prefix string, rest, ok bool) {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return "", true, false
	}
	parts := []*syntax.Regexp{re}
	if re.Op == syntax.OpConcat {
		parts = re.Sub
	}
	if parts[0].Op != syntax.OpBeginText {
		return "", true, false
	}
	parts = parts[1:]
	if len(parts) > 0 && parts[0].Op == syntax.OpLiteral && parts[0].Flags&syntax.FoldCase == 0 {
		prefix, parts = string(parts[0].Rune), parts[1:]
	}
	anything := []syntax.Op{syntax.OpAnyChar, syntax.OpAnyCharNotNL}
	rest = slices.ContainsFunc(parts, func(p *syntax.Regexp) bool {
		return p.Op != syntax.OpStar || !slices.Contains(anything, p.Sub[0].Op)
	})
	return prefix, rest, true
}

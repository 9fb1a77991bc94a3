package catalog

import (
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/quorate/quorate/proto/logpb"
)

// movers are the keys of policies by which messages go elsewhere than their
// publishers have sent them: those of queues, and those of exchanges.
var movers = struct{ queues, exchanges []string }{
	queues:    []string{"dead-letter-exchange", "dead-letter-routing-key"},
	exchanges: []string{"alternate-exchange"},
}

// MayPutPolicy refuses a policy by whose keys messages would go where the author
// could not have them go by a declare: that takes write on the exchange, and
// read on what they come from. A policy holds also for what is declared after
// it, so read must cover every name that its pattern may match.
func (v *View) MayPutPolicy(author string, m *logpb.PutPolicy) error {
	ask, to := v.access(author, m.GetVhost()), m.GetApplyTo()
	for _, of := range []struct {
		kind    string
		concern bool
		keys    []string
	}{{kindQueue, to != applyExchanges, movers.queues}, {kindExchange, to == applyExchanges || to == applyAll, movers.exchanges}} {
		moves := false
		for _, key := range of.keys {
			target := lookup(m.GetDefinition(), key)
			if target == nil || !of.concern {
				continue
			}
			moves = true
			if name, ok := text(target); ok && strings.HasSuffix(key, "-exchange") {
				if err := ask(Write, kindExchange, name); err != nil {
					return err
				}
			}
		}
		if p, ok := v.Permission(author, m.GetVhost()); moves && !(ok && covers(p.Read, m.GetPattern())) {
			return AccessRefused(author, m.GetVhost(), Read, of.kind, m.GetPattern())
		}
	}
	return nil
}

// covers reports whether every name that matches inner also matches outer, as
// far as that can be told from the texts: outer matches all names, both are the
// same, or both begin with ^ and letters that stand for themselves, outer with no
// more of them than inner and nothing behind but what matches anything.
func covers(outer, inner string) bool {
	if p := newPattern(outer); p.all || outer != "" && outer == inner {
		return true
	}
	prefix, rest, ok := beginning(outer)
	if !ok || rest {
		return false
	}
	most, _, ok := beginning(inner)
	return ok && strings.HasPrefix(most, prefix)
}

// beginning returns with what every name begins that a pattern matches; ok false:
// nothing is known. rest: it asks for more than that.
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

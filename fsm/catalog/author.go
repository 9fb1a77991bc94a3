package catalog

import (
	"strings"

	"github.com/quorate/quorate/fsm/pattern"
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
	if n := newNames(outer, dialectOwn); n.all || outer != "" && outer == inner {
		return true
	}
	o, err := pattern.Compile(outer)
	if err != nil {
		return false
	}
	i, err := pattern.Compile(inner)
	if err != nil || strings.Contains(inner, "{") { // which RE2 reads otherwise
		return false
	}
	prefix, all, _ := o.Prefix()
	start, _, ok := i.Prefix()
	return all && ok && strings.HasPrefix(start, prefix)
}

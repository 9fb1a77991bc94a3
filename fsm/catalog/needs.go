package catalog

// noEnds is the setting audit-max 0 as the log stores it.
const noEnds = 1

// Needs says what a queue must be told about a message besides what all queues
// are told.
type Needs struct {
	MessageID bool // it finds duplicates by it
	Label     bool // it remembers what publishers call messages, for its record of ends
}

// Needs returns what a queue must be told about messages, as its arguments and
// the policies in force have it. A delayed exchange has no such settings.
func (vs *vhosts) Needs(q *Queue) Needs {
	if q.StoreOf != "" {
		return Needs{Label: true}
	}
	e := effective{q.Arguments, vs.match(q).definition()}
	return Needs{MessageID: e.value("dedup-window").GetInt() != 0, Label: stored(e.value("audit-max")) != noEnds}
}

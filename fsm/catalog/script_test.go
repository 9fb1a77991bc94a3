package catalog

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// TestScripts runs testdata. The directives:
//
//	apply [index=N] [now=N] [proposal=NODE/INCARNATION/NUMBER/FROM]
//	                          one entry; each line is a command, see parseCommand
//	ask [user=U] [owner=N/B/C] [now=N]
//	                          the commands as requests of a client, against the view; of a declare also what differs
//	show                      the state, without the exchanges every vhost has
//	hash                      the digest of the snapshot's bytes: the format on disk
//	route [chance=N] [local=Q,…] [message_id=TEXT …]
//	                          lines "VHOST EXCHANGE KEY[,KEY…] [NAME=VALUE…]", to the queues, with their limits on the TTL,
//	                          and past which exchanges that are deleted when idle
//	in-force                  lines "VHOST queue|exchange NAME", the policies in force and what they say together
//	size                      lines "VHOST QUEUE", how many members it has and should have; the default is 3
//	may                       lines "USER VHOST VERB NAME"
//	topic                     lines "USER VHOST VERB EXCHANGE KEY"
//	consume                   lines "QUEUE NAME=VALUE…", the arguments as they are understood: what is not zero;
//	                          a QUEUE that is not there has no arguments
//	settings [timeout=N]      lines "VHOST QUEUE"
//	timeout-action [node=A]   lines "VHOST QUEUE", what a consumer timeout does
//
// After each entry the state is checked and compared with what comes out of its
// snapshot.
func TestScripts(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			s := &script{t: t}
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.run(d) })
		})
	}
}

type script struct {
	t *testing.T
	c Catalog
	// applied is told of each entry before it is applied; nil: nobody is.
	applied func(index uint64, e *logpb.CatalogEntry)
}

func (s *script) run(d *datadriven.TestData) string {
	switch d.Cmd {
	case "show":
		return show(s.c.String())
	case "hash":
		return fmt.Sprintf("%x", s.c.Hash())
	}
	lines := strings.Split(strings.TrimSpace(d.Input), "\n")
	var out strings.Builder
	each := func(f func(words []string) string) {
		for _, line := range lines {
			out.WriteString(f(splitWords(line)) + "\n")
		}
	}
	v := s.c.View()
	switch d.Cmd {
	case "apply":
		return s.apply(d, lines)
	case "ask":
		by := Client{User: "guest"}
		d.MaybeScanArgs(s.t, "user", &by.User)
		var owner string
		if d.MaybeScanArgs(s.t, "owner", &owner) {
			by.Owner = ownerFrom(parseOwner(s.t, owner))
		}
		now := int64(v.Clock())
		d.MaybeScanArgs(s.t, "now", &now)
		each(func(w []string) string { return clientAnswer(v, by, parseCommand(s.t, w), fsm.Time(now)) })
	case "route":
		each(func(w []string) string { return s.route(v, d, w) })
	case "may":
		each(func(w []string) string {
			verb := map[string]Verb{"configure": Configure, "write": Write, "read": Read}[w[2]]
			return fmt.Sprint(v.May(w[0], w[1], verb, w[3]))
		})
	case "topic":
		each(func(w []string) string {
			verb := map[string]Verb{"write": Write, "read": Read}[w[2]]
			p := v.TopicRule(w[0], w[1], w[3])
			if p == nil {
				return "no rule"
			}
			if err := p.Check(verb, w[4]); err != nil {
				return refusalText(err)
			}
			return "may"
		})
	case "in-force":
		each(func(w []string) string { return effectivePolicyText(s.t, v, w) })
	case "size":
		each(func(w []string) string { return sizeOf(s.t, v, w) })
	case "consume":
		each(func(w []string) string {
			q, ok := v.Queue("/", w[0])
			if !ok {
				q = &Queue{VHost: "/", Name: w[0]}
			}
			c, err := ParseConsumeArguments(q, parseTable(s.t, w[1:]))
			if err != nil {
				return refusalText(err)
			}
			return givenFields(c)
		})
	case "timeout-action":
		var node string
		d.MaybeScanArgs(s.t, "node", &node)
		each(func(w []string) string {
			q, ok := v.Queue(w[0], w[1])
			if !ok {
				s.t.Fatalf("no queue %s", w[1])
			}
			return string(v.TimeoutAction(q, Defaults{TimeoutAction: TimeoutAction(node)}))
		})
	case "settings":
		var timeout int64
		d.MaybeScanArgs(s.t, "timeout", &timeout)
		each(func(w []string) string {
			q, ok := v.Queue(w[0], w[1])
			if !ok {
				s.t.Fatalf("no queue %s", w[1])
			}
			return v.Settings(q, Defaults{ConsumerTimeout: fsm.Millis(timeout)}).String()
		})
	default:
		s.t.Fatalf("%s: unknown directive %s", d.Pos, d.Cmd)
	}
	return strings.ReplaceAll(out.String(), "  ", " ")
}

// givenFields shows the fields that are not zero.
func givenFields(c ConsumeArguments) string {
	var b strings.Builder
	v := reflect.ValueOf(c)
	for i := range v.NumField() {
		if f := v.Field(i); !f.IsZero() {
			fmt.Fprintf(&b, " %s:%v", v.Type().Field(i).Name, f)
		}
	}
	return "{" + strings.TrimPrefix(b.String(), " ") + "}"
}

func (s *script) apply(d *datadriven.TestData, lines []string) string {
	index, now := s.c.View().Index()+1, int64(0)
	d.MaybeScanArgs(s.t, "index", &index)
	d.MaybeScanArgs(s.t, "now", &now)
	e := &logpb.CatalogEntry{Version: 1, Now: now}
	e.Proposal = s.proposal(d)
	for _, line := range lines {
		e.Commands = append(e.Commands, parseCommand(s.t, splitWords(line)))
	}
	if s.applied != nil {
		s.applied(index, e)
	}
	var out strings.Builder
	for _, r := range s.c.Apply(index, e) {
		out.WriteString(answer(r) + "\n")
	}
	if err := s.c.Check(); err != nil {
		s.t.Fatalf("%s: %v", d.Pos, err)
	}
	if again := mustReload(s.t, &s.c); again.String() != s.c.String() || again.Hash() != s.c.Hash() {
		s.t.Fatalf("%s: the snapshot gives\n%s\nnot\n%s", d.Pos, again, &s.c)
	}
	return out.String()
}

func (s *script) route(v *View, d *datadriven.TestData, w []string) string {
	table := parseTable(s.t, w[3:])
	m := Message{Keys: strings.Split(w[2], ","), Headers: func() *fsm.Table { return table }}
	d.MaybeScanArgs(s.t, "chance", &m.Chance)
	var local string
	if d.MaybeScanArgs(s.t, "local", &local) {
		m.Local = func(q *Queue) bool { return slices.Contains(strings.Split(local, ","), q.Name) }
	}
	m.Property = func(name string) []byte {
		var value string
		d.MaybeScanArgs(s.t, name, &value)
		return []byte(value)
	}
	var copies []string
	m.Filter = func(x *Exchange) bool {
		for b := range x.Bindings() {
			copies = append(copies, fmt.Sprintf("%s~%s", b.Destination, b.Program()))
		}
		slices.Sort(copies)
		return len(copies) > 0
	}
	passed := ""
	m.Passed = func(x *Exchange) { passed += " past " + x.Name }
	queues, limits, err := v.Route(w[0], w[1], &m, nil)
	if err != nil {
		return refusalText(err)
	}
	names := make([]string, len(queues))
	for i, q := range queues {
		names[i] = q.Name
		if ttl := limits.Of(q); ttl.Given {
			names[i] += fmt.Sprintf("≤%d", ttl.Value)
		}
	}
	names = append(names, copies...)
	slices.Sort(names)
	return "to " + strings.Join(names, " ") + passed
}

func effectivePolicyText(t testing.TB, v *View, w []string) string {
	t.Helper()
	var f EffectivePolicy
	if x, ok := v.Exchange(w[0], w[2]); ok && w[1] == kindExchange {
		f = x.EffectivePolicy()
	} else if q, ok := v.Queue(w[0], w[2]); ok && w[1] == kindQueue {
		f = v.EffectivePolicy(q)
	} else {
		t.Fatalf("no %s %s", w[1], w[2])
	}
	return fmt.Sprintf("policy=%q operator=%q %s", f.Policy, f.Operator, renderTable(f.Definition))
}

// mustReload sends the state through the bytes of its snapshot.
func mustReload(t interface{ Fatalf(string, ...any) }, c *Catalog) *Catalog {
	var s logpb.CatalogSnapshot
	if err := logpb.Unmarshal(encoded(c.Snapshot()), &s); err != nil {
		t.Fatalf("snapshot: %v", err)
	}
	again, err := Restore(&s)
	if err != nil {
		t.Fatalf("restore: %v", err)
	}
	return again
}

// show leaves out the lines of the predeclared exchanges.
func show(state string) string {
	var out strings.Builder
	for line := range strings.Lines(state) {
		if !strings.HasPrefix(line, "  exchange amq.") {
			out.WriteString(line)
		}
	}
	return out.String()
}

var kindNames = map[fsm.Kind]string{
	fsm.Internal: "internal", fsm.NotFoundKind: "not-found", fsm.AccessRefused: "access-refused", fsm.Locked: "locked",
	fsm.Precondition: "precondition", fsm.NotAllowed: "not-allowed", fsm.NotImplemented: "not-implemented", fsm.Forced: "forced",
}

func refusalText(err error) string {
	r, ok := err.(*fsm.Refusal)
	if !ok {
		return "error: " + err.Error()
	}
	return kindNames[r.Kind] + ": " + r.Text
}

func answer(r *logpb.CatalogResult) string {
	if err := Refused(r); err != nil {
		return refusalText(err)
	}
	text := "unchanged"
	if r.Changed {
		text = "ok"
	}
	if r.Adopted {
		text += " adopted"
	}
	if r.Queue != 0 {
		text += fmt.Sprintf(" queue=%d.%d group=%d", r.Queue>>16, r.Queue&0xffff, r.Group)
	}
	if r.Node != 0 {
		text += fmt.Sprintf(" node=%d boot=%d", r.Node, r.Boot)
	}
	for _, id := range r.Configured {
		text += fmt.Sprintf(" configured=%d.%d", id>>16, id&0xffff)
	}
	for _, id := range r.Moved {
		text += fmt.Sprintf(" moved=%d.%d", id>>16, id&0xffff)
	}
	for _, id := range r.Deleted {
		text += fmt.Sprintf(" deleted=%d.%d", id>>16, id&0xffff)
	}
	return text
}

// clientAnswer answers a client from the view alone.
func clientAnswer(v *View, by Client, c *logpb.CatalogCommand, now fsm.Time) string {
	found := func(exists bool, err error) string {
		if err != nil {
			return refusalText(err)
		}
		return map[bool]string{true: "there", false: "not there"}[exists]
	}
	switch m := c.Body.(type) {
	case *logpb.CatalogCommand_DeclareQueue:
		m.DeclareQueue.Owner = by.Owner.Proto()
		q, err := v.CheckDeclareQueue(by, m.DeclareQueue, false)
		text := found(q != nil, err)
		if q != nil && err == nil {
			if text += driftText(q.Drift(v, m.DeclareQueue)); q.Adopts(v, m.DeclareQueue, now) {
				text += ", adopts"
			}
		}
		return text
	case *logpb.CatalogCommand_DeleteQueue:
		q, err := v.CheckDeleteQueue(by, m.DeleteQueue.Vhost, m.DeleteQueue.Name)
		return found(q != nil, err)
	case *logpb.CatalogCommand_DeclareExchange:
		x, err := v.CheckDeclareExchange(by, m.DeclareExchange)
		text := found(x != nil, err)
		if x != nil && err == nil {
			text += driftText(x.Drift(v, m.DeclareExchange))
		}
		return text
	case *logpb.CatalogCommand_DeleteExchange:
		return found(v.CheckDeleteExchange(by, m.DeleteExchange))
	case *logpb.CatalogCommand_Bind:
		return found(v.CheckBind(by, m.Bind))
	case *logpb.CatalogCommand_Unbind:
		return found(v.CheckUnbind(by, m.Unbind))
	case *logpb.CatalogCommand_PutPolicy:
		if err := v.ValidatePolicy(m.PutPolicy); err != nil {
			return refusalText(err)
		}
		return "valid"
	}
	return "not a request of a client"
}

func driftText(list []Difference) (text string) {
	for _, d := range list {
		text += fmt.Sprintf(", %s is %s not %s", d.Argument, Term(d.Received), Term(d.Current))
	}
	return text
}

// splitWords splits a line at blanks. Two single quotes stand for the empty word.
func splitWords(line string) []string {
	w := strings.Fields(line)
	for i := range w {
		if w[i] == "''" {
			w[i] = ""
		}
	}
	return w
}

func parseOwner(t testing.TB, text string) *logpb.Owner {
	t.Helper()
	var o logpb.Owner
	if _, err := fmt.Sscanf(text, "%d/%d/%d", &o.Node, &o.Boot, &o.Connection); err != nil {
		t.Fatalf("owner %q: %v", text, err)
	}
	return &o
}

// parseTable reads fields NAME=TYPE:VALUE, where TYPE is the wire letter.
func parseTable(t testing.TB, words []string) *fsm.Table {
	t.Helper()
	if len(words) == 0 {
		return nil
	}
	table := &fsm.Table{}
	for _, w := range words {
		name, rest, ok := strings.Cut(w, "=")
		letter, value, ok2 := strings.Cut(rest, ":")
		if !ok || !ok2 || len(letter) != 1 {
			t.Fatalf("%q is no field", w)
		}
		table.Fields = append(table.Fields, &logpb.Field{Name: name, Value: parseValue(t, letter[0], value)})
	}
	return table
}

func parseValue(t testing.TB, letter byte, text string) *logpb.Value {
	t.Helper()
	v := &logpb.Value{Tag: uint32(letter)}
	switch letter {
	case 'S', 'x', 'D':
		v.Str = []byte(text)
	case 'V':
	case 'A':
		v.Array = []*logpb.Value{{Tag: 'S', Str: []byte(text)}}
	case 'F':
		v.Table = &fsm.Table{Fields: []*logpb.Field{{Name: text, Value: &logpb.Value{Tag: 't', Int: 1}}}}
	default:
		n, err := strconv.ParseInt(text, 0, 64)
		if err != nil {
			t.Fatalf("value %q: %v", text, err)
		}
		v.Int = n
	}
	return v
}

// options takes what follows the fixed words of a command apart: flags,
// settings name=value, and fields NAME=TYPE:VALUE.
type options struct {
	flags  map[string]bool
	values map[string]string
	table  *fsm.Table
}

func parseOptions(t testing.TB, words []string) options {
	o := options{flags: map[string]bool{}, values: map[string]string{}}
	var fields []string
	for _, w := range words {
		name, value, ok := strings.Cut(w, "=")
		switch {
		case !ok:
			o.flags[w] = true
		case len(value) > 1 && value[1] == ':' && name != "peer":
			fields = append(fields, w)
		default:
			o.values[name] = value
		}
	}
	o.table = parseTable(t, fields)
	return o
}

// parseCommand reads a command:
//
//	node NAME INCARNATION [peer=ADDRESS] [versions=OLDEST-NEWEST]
//	initialize VHOST USER
//	vhost NAME [description=TEXT] [default-queue-type=TYPE] [redeclare=MODE], delete-vhost NAME
//	user NAME [hash=TEXT], delete-user NAME
//	permission USER VHOST CONFIGURE WRITE READ, delete-permission USER VHOST
//	topic-permission USER VHOST EXCHANGE WRITE READ, delete-topic-permission USER VHOST [EXCHANGE]
//	draining NODE yes|no, dead NODE BOOT
//	token NAME ttl=N [for=NODE], delete-token NAME
//	[operator-]policy VHOST NAME PATTERN [apply-to=WHAT] [priority=N] [dialect=N] [lenient] [KEY=TYPE:VALUE…], delete-[operator-]policy VHOST NAME
//	exchange VHOST NAME TYPE [durable] [auto-delete] [internal] [NAME=TYPE:VALUE…], delete-exchange VHOST NAME [if-unused]
//	queue VHOST NAME [durable] [exclusive] [auto-delete] [local] [classic] [members=N,…] [owner=N/B/C] [NAME=TYPE:VALUE…]
//	delete-queue VHOST NAME [id=INDEX.POSITION] [lost-boot=N], delete-owned N/B/C
//	bind|unbind|bind-exchange|unbind-exchange VHOST SOURCE DESTINATION KEY [NAME=TYPE:VALUE…]
//	not-admitted KIND TEXT
func parseCommand(t testing.TB, w []string) *logpb.CatalogCommand {
	t.Helper()
	c := &logpb.CatalogCommand{}
	switch w[0] {
	case "not-admitted":
		kind, err := strconv.ParseUint(w[1], 10, 8)
		if err != nil {
			t.Fatal(err)
		}
		c.Body = &logpb.CatalogCommand_NotAdmitted{NotAdmitted: &logpb.NotAdmitted{Refusal: uint32(kind), Text: w[2]}}
	case "node":
		o := parseOptions(t, w[3:])
		m := &logpb.RegisterNode{Name: w[1], Incarnation: []byte(w[2]), PeerAddress: o.values["peer"], Identity: []byte(o.values["identity"])}
		if v, ok := o.values["versions"]; ok {
			if _, err := fmt.Sscanf(v, "%d-%d", &m.OldestVersion, &m.NewestVersion); err != nil {
				t.Fatalf("versions %q: %v", v, err)
			}
		}
		c.Body = &logpb.CatalogCommand_RegisterNode{RegisterNode: m}
	case "draining":
		c.Body = &logpb.CatalogCommand_SetDraining{SetDraining: &logpb.SetDraining{Name: w[1], Draining: w[2] == "yes"}}
	case "dead":
		c.Body = &logpb.CatalogCommand_DeclareDead{DeclareDead: &logpb.DeclareDead{Name: w[1], Boot: parseBoot(t, w[2])}}
	case "initialize":
		c.Body = &logpb.CatalogCommand_Initialize{Initialize: &logpb.Initialize{
			Vhost: &logpb.PutVhost{Name: w[1]}, User: &logpb.PutUser{Name: w[2], HashAlgorithm: "plain"},
			Permission: &logpb.PutPermission{User: w[2], Vhost: w[1], Configure: ".*", Write: ".*", Read: ".*"}}}
	case "setting":
		m := &logpb.PutSetting{Name: w[1], Unset: len(w) < 3}
		if !m.Unset {
			m.Value = parseValue(t, 'l', w[2]).Int
		}
		c.Body = &logpb.CatalogCommand_PutSetting{PutSetting: m}
	case "limit":
		m := &logpb.PutLimit{User: w[1] == "user", Of: w[2], Name: w[3], Unset: len(w) < 5}
		if !m.Unset {
			m.Value = parseValue(t, 'l', w[4]).Int
		}
		c.Body = &logpb.CatalogCommand_PutLimit{PutLimit: m}
	case "token":
		o := parseOptions(t, w[2:])
		c.Body = &logpb.CatalogCommand_PutJoinToken{PutJoinToken: &logpb.PutJoinToken{
			Hash: tokenHash(w[1]), Ttl: uint64(parseValue(t, 'l', o.values["ttl"]).Int), Node: o.values["for"]}}
	case "delete-token":
		c.Body = &logpb.CatalogCommand_DeleteJoinToken{DeleteJoinToken: &logpb.DeleteJoinToken{Hash: tokenHash(w[1])}}
	case "vhost":
		o := parseOptions(t, w[2:])
		c.Body = &logpb.CatalogCommand_PutVhost{PutVhost: &logpb.PutVhost{Name: w[1], Description: o.values["description"], DefaultQueueType: o.values["default-queue-type"], Redeclare: logpb.PutVhost_Redeclare(max(0, slices.Index(RedeclareModes, o.values["redeclare"])))}}
	case "delete-vhost":
		c.Body = &logpb.CatalogCommand_DeleteVhost{DeleteVhost: &logpb.DeleteVhost{Name: w[1]}}
	case "user":
		c.Body = &logpb.CatalogCommand_PutUser{PutUser: &logpb.PutUser{Name: w[1], PasswordHash: []byte(parseOptions(t, w[2:]).values["hash"])}}
	case "rehash":
		o := parseOptions(t, w[2:])
		c.Body = &logpb.CatalogCommand_ReplaceHash{ReplaceHash: &logpb.ReplaceHash{
			Name: w[1], Was: []byte(o.values["was"]), PasswordHash: []byte(o.values["hash"]), HashAlgorithm: o.values["algorithm"],
		}}
	case "delete-user":
		c.Body = &logpb.CatalogCommand_DeleteUser{DeleteUser: &logpb.DeleteUser{Name: w[1]}}
	case "permission":
		c.Body = &logpb.CatalogCommand_PutPermission{PutPermission: &logpb.PutPermission{User: w[1], Vhost: w[2], Configure: w[3], Write: w[4], Read: w[5]}}
	case "delete-permission":
		c.Body = &logpb.CatalogCommand_DeletePermission{DeletePermission: &logpb.DeletePermission{User: w[1], Vhost: w[2]}}
	case "topic-permission":
		c.Body = &logpb.CatalogCommand_PutTopicPermission{PutTopicPermission: &logpb.PutTopicPermission{User: w[1], Vhost: w[2], Exchange: w[3], Write: w[4], Read: w[5]}}
	case "delete-topic-permission":
		m := &logpb.DeleteTopicPermission{User: w[1], Vhost: w[2], All: len(w) < 4}
		if !m.All {
			m.Exchange = w[3]
		}
		c.Body = &logpb.CatalogCommand_DeleteTopicPermission{DeleteTopicPermission: m}
	case "delete-owned":
		c.Body = &logpb.CatalogCommand_DeleteOwned{DeleteOwned: &logpb.DeleteOwned{Owner: parseOwner(t, w[1])}}
	case "policy", "operator-policy":
		c.Body = &logpb.CatalogCommand_PutPolicy{PutPolicy: parsePolicy(t, w)}
	case "delete-policy", "delete-operator-policy":
		c.Body = &logpb.CatalogCommand_DeletePolicy{DeletePolicy: &logpb.DeletePolicy{Vhost: w[1], Name: w[2], Operator: w[0] != "delete-policy"}}
	case "admit", "forget", "recover", "members", "left":
		parsePlacement(t, w, c)
	default:
		parseTopology(t, w, c)
	}
	return c
}

// tokenHash is that of the token with a short name.
func tokenHash(name string) []byte {
	if name == "short" {
		return []byte(name)
	}
	h := sha256.Sum256([]byte(name))
	return h[:]
}

func parsePolicy(t testing.TB, w []string) *logpb.PutPolicy {
	t.Helper()
	o := parseOptions(t, w[4:])
	m := &logpb.PutPolicy{Vhost: w[1], Name: w[2], Operator: w[0] != "policy", Pattern: w[3], ApplyTo: "all", Definition: o.table, Lenient: o.flags["lenient"]}
	if n, err := strconv.Atoi(o.values["pattern-bytes"]); err == nil {
		m.Pattern = strings.Repeat("a", n)
	}
	if what, ok := o.values["apply-to"]; ok {
		m.ApplyTo = what
	}
	if n, err := strconv.ParseInt(o.values["priority"], 10, 64); err == nil {
		m.Priority = n
	}
	if n, err := strconv.ParseUint(o.values["dialect"], 10, 32); err == nil {
		m.Dialect = uint32(n)
	}
	slices.SortFunc(m.Definition.GetFields(), func(a, b *logpb.Field) int { return strings.Compare(a.Name, b.Name) })
	return m
}

// parseTopology reads the commands about exchanges, queues and bindings.
func parseTopology(t testing.TB, w []string, c *logpb.CatalogCommand) {
	t.Helper()
	switch w[0] {
	case "exchange":
		o := parseOptions(t, w[4:])
		c.Body = &logpb.CatalogCommand_DeclareExchange{DeclareExchange: &logpb.DeclareExchange{Vhost: w[1], Name: w[2], Type: w[3],
			Durable: o.flags["durable"], AutoDelete: o.flags["auto-delete"], Internal: o.flags["internal"], Arguments: o.table}}
	case "touch":
		c.Body = &logpb.CatalogCommand_TouchExchange{TouchExchange: &logpb.TouchExchange{Vhost: w[1], Name: w[2], At: parseValue(t, 'l', w[3]).Int}}
	case "expire":
		c.Body = &logpb.CatalogCommand_ExpireExchange{ExpireExchange: &logpb.ExpireExchange{Vhost: w[1], Name: w[2], At: parseValue(t, 'l', w[3]).Int}}
	case "delete-exchange":
		c.Body = &logpb.CatalogCommand_DeleteExchange{DeleteExchange: &logpb.DeleteExchange{Vhost: w[1], Name: w[2], IfUnused: parseOptions(t, w[3:]).flags["if-unused"]}}
	case "queue":
		c.Body = &logpb.CatalogCommand_DeclareQueue{DeclareQueue: parseQueue(t, w)}
	case "delete-queue":
		m := &logpb.DeleteQueue{Vhost: w[1], Name: w[2]}
		o := parseOptions(t, w[3:])
		if boot, ok := o.values["lost-boot"]; ok {
			m.LostBoot = parseBoot(t, boot)
		}
		if id, ok := o.values["id"]; ok {
			var index, position uint64
			if _, err := fmt.Sscanf(id, "%d.%d", &index, &position); err != nil {
				t.Fatalf("id %q: %v", id, err)
			}
			m.Id = index<<16 | position
		}
		c.Body = &logpb.CatalogCommand_DeleteQueue{DeleteQueue: m}
	case "bind", "unbind", "bind-exchange", "unbind-exchange":
		m := &logpb.Bind{Vhost: w[1], Source: w[2], Destination: w[3], RoutingKey: w[4], Arguments: parseTable(t, w[5:]),
			ToExchange: strings.HasSuffix(w[0], "-exchange")}
		c.Body = &logpb.CatalogCommand_Bind{Bind: m}
		if strings.HasPrefix(w[0], "un") {
			c.Body = &logpb.CatalogCommand_Unbind{Unbind: m}
		}
	default:
		t.Fatalf("unknown command %q", w[0])
	}
}

func parseQueue(t testing.TB, w []string) *logpb.DeclareQueue {
	t.Helper()
	o := parseOptions(t, w[3:])
	m := &logpb.DeclareQueue{Vhost: w[1], Name: w[2], Durable: o.flags["durable"], Exclusive: o.flags["exclusive"],
		AutoDelete: o.flags["auto-delete"], Local: o.flags["local"], Classic: o.flags["classic"], Arguments: o.table}
	for number := range strings.SplitSeq(o.values["members"], ",") {
		if n, err := strconv.ParseUint(number, 10, 32); err == nil {
			m.Members = append(m.Members, uint32(n))
		}
	}
	if owner, ok := o.values["owner"]; ok {
		m.Owner = parseOwner(t, owner)
	}
	return m
}

func parseBoot(t testing.TB, text string) uint64 {
	t.Helper()
	boot, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("boot %q: %v", text, err)
	}
	return boot
}

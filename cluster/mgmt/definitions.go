package mgmt

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/tables"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// importedHash is the global parameter with the hash of the definitions that a node has loaded last. No
// import takes it up, as other clusters' parameters of such names, and no export contains it.
const importedHash = "internal_imported_definitions"

// errNoDefinitions says that a text is no object in JSON.
var errNoDefinitions = errors.New("failed_to_parse_json")

// parseDefinitions reads an exported object. only: the one vhost that it is about; empty: the cluster.
func parseDefinitions(raw []byte, only string) (map[string][]body, error) {
	value, err := decode(raw)
	all, isObject := value.(map[string]any)
	if err != nil || !isObject {
		return nil, errNoDefinitions
	}
	return itemsOf(all, only)
}

// CheckDefinitions reports what keeps definitions of a cluster from being imported.
func CheckDefinitions(raw []byte) error {
	_, err := parseDefinitions(raw, "")
	return err
}

// LoadDefinitions imports the definitions of a cluster; see take. The same import can be made again.
func (b *Backend) LoadDefinitions(ctx context.Context, raw []byte, partial bool) (api.Imported, error) {
	lists, err := parseDefinitions(raw, "")
	if err != nil {
		return api.Imported{}, err
	}
	return b.definitionsOf().take(ctx, lists, "", partial)
}

// ImportedHash is what SetImportedHash has set last; empty: nothing.
func (b *Backend) ImportedHash() (hash string) {
	value, _ := b.Catalog.View().GlobalParameter(importedHash)
	if json.Unmarshal(value, &hash) != nil {
		return "" // somebody else has set it
	}
	return hash
}

// SetImportedHash keeps the hash of definitions that have been loaded in the catalog.
func (b *Backend) SetImportedHash(ctx context.Context, hash string) error {
	c, err := putGlobalParameter(importedHash, hash)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, importWait)
	defer cancel()
	results, err := b.Catalog.Propose(ctx, c)
	if err != nil {
		return err
	}
	return catalog.Refused(results[0])
}

// definitionsOf are the parts that an import works on.
func (b *Backend) definitionsOf() definitions {
	return definitions{b.Catalog, users{b.Catalog, b.Logins}, b.Node, b.Objects, b.Seeds, b.newQueueType()}
}

func newImporter(ctx context.Context, ds definitions, only string) *importer {
	return &importer{definitions: ds, ctx: ctx, only: only, report: api.Imported{Taken: map[string]int{}, Skipped: []api.Skipped{}}}
}

const (
	// importBatch is how many definitions one entry of the catalog takes.
	importBatch = 256
	// policyBatch is how many it takes that may be policies: each is matched against all names of its
	// vhost, while the catalog's log waits.
	policyBatch = 16
	// importWait bounds how long one batch may take.
	importWait = 30 * time.Second
	// maxSkipped bounds the list of an import's answer.
	maxSkipped = 1000
)

// section is a list of definitions. need are the keys without which an item means nothing.
type section struct {
	name  string
	need  []string
	whole bool // of the cluster, not of a vhost
	make  func(*importer, body) ([]*logpb.CatalogCommand, error)
}

// sections are the lists in the order in which they depend on each other.
var sections = []section{
	{"users", []string{"name"}, true, (*importer).user},
	{"vhosts", []string{"name"}, true, (*importer).vhost},
	{"permissions", []string{"user", "vhost", "configure", "write", "read"}, true, (*importer).permission},
	{"topic_permissions", []string{"user", "vhost", "exchange", "write", "read"}, true, (*importer).topicPermission},
	{"parameters", []string{"component", "vhost", "name", "value"}, false, (*importer).parameter},
	{"global_parameters", []string{"name"}, true, (*importer).globalParameter},
	{"policies", []string{"vhost", "name", "pattern", "definition"}, false, (*importer).policy},
	{"exchanges", []string{"vhost", "name"}, false, (*importer).exchange},
	{"queues", []string{"vhost", "name"}, false, (*importer).queue},
	{"descriptions", []string{"vhost", "name", "kind", "key", "text"}, false, (*importer).describe},
	{"bindings", []string{"vhost", "source", "destination", "destination_type"}, false, (*importer).binding},
}

// importer takes up definitions. A definition that cannot be taken is skipped, with the reason; the
// others go on. See take.
type importer struct {
	definitions
	ctx    context.Context
	only   string // the one vhost that is imported; empty: the cluster
	batch  []pending
	size   int // commands in batch
	report api.Imported
}

// pending is a definition whose commands have not been committed.
type pending struct {
	at       api.Skipped // without a reason
	commands []*logpb.CatalogCommand
}

// load takes up the definitions in the body.
func (ds definitions) load(w *responder, r *request) {
	only := r.PathValue("vhost")
	if _, ok := r.view.VHost(only); only != "" && !ok {
		w.notFound()
		return
	}
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		w.unread(err)
		return
	}
	lists, err := parseDefinitions(raw, only)
	if err != nil {
		w.badRequest(err.Error())
		return
	}
	report, err := ds.take(r.Context(), lists, only, r.URL.Query().Get("partial") == "true")
	r.detail = map[string]any{"taken": report.Taken, "skipped": report.SkippedTotal}
	var left *LeftOut
	switch {
	case errors.As(err, &left):
		status, kind := http.StatusBadRequest, "bad_request"
		if len(report.Taken) > 0 {
			status, kind = http.StatusConflict, "conflict"
		}
		w.answer(status, api.NotImported{Failure: api.Failure{Error: kind, Reason: left.Error()}, Imported: report})
	case err != nil:
		w.failed(err)
	case report.SkippedTotal > 0:
		w.log.Warn("definitions were imported in part", "skipped", report.SkippedTotal, "first", report.Skipped[0].Section+" "+report.Skipped[0].Name, "reason", report.Skipped[0].Reason)
		w.answer(http.StatusOK, report)
	case len(report.Notes) > 0:
		w.answer(http.StatusOK, report)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// LeftOut says that definitions cannot all be taken.
type LeftOut struct{ Report api.Imported }

func (e *LeftOut) Error() string {
	first := e.Report.Skipped[0]
	at := first.Section + " " + strconv.Quote(first.Name)
	if first.VHost != "" {
		at += " in vhost " + strconv.Quote(first.VHost)
	}
	text := fmt.Sprintf("%s: %s", at, first.Reason)
	if more := e.Report.SkippedTotal - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more)", more)
	}
	if len(e.Report.Taken) > 0 {
		return "definitions changed during the import, so some were not imported: " + text
	}
	return "some definitions cannot be imported, so none was: " + text + "; use partial=true to import the others"
}

// take takes up definitions: all or nothing, or with partial as many as can be. All of them are tried
// on a copy of the catalog first; if others change what is defined between that and the import, some
// may be left out after all. A *LeftOut says that some are; another error that the catalog has not
// taken a batch, or may have.
func (ds definitions) take(ctx context.Context, lists map[string][]body, only string, partial bool) (api.Imported, error) {
	if !partial {
		trial := ds
		trial.catalog = &rehearsal{catalog: ds.catalog.View().Fork()}
		trial.users = users{trial.catalog, unhashed{}}
		x := newImporter(ctx, trial, only)
		if err := x.all(lists); err != nil || x.report.SkippedTotal > 0 {
			x.report.Taken = map[string]int{}
			return x.report, cmp.Or(err, error(&LeftOut{x.report}))
		}
	}
	before := ds.catalog.View()
	x := newImporter(ctx, ds, only)
	err := x.all(lists)
	if err == nil {
		err = ds.seeds.sow(ctx, ds.catalog, before)
	}
	if err == nil && !partial && x.report.SkippedTotal > 0 {
		err = &LeftOut{x.report}
	}
	return x.report, err
}

// rehearsal is a catalog of its own, in which an import is tried.
type rehearsal struct{ catalog *catalog.Catalog }

func (r *rehearsal) View() *catalog.View { return r.catalog.View() }

func (r *rehearsal) Propose(_ context.Context, commands ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error) {
	v := r.View()
	return r.catalog.Apply(v.Index()+1, &logpb.CatalogEntry{Version: v.FSMVersion(), Now: int64(v.Clock()), Commands: commands}), nil
}

// unhashed stands for the hash of a password where only matters that there is one.
type unhashed struct{ Logins }

func (unhashed) HashPassword(context.Context, string) ([]byte, error) { return []byte{0}, nil }

// itemsOf checks the form of all definitions before any is taken up. A single vhost's items get its
// name. Null values count as missing.
func itemsOf(all map[string]any, only string) (map[string][]body, error) {
	lists := map[string][]body{}
	for _, s := range sections {
		given, ok := all[s.name].([]any)
		if all[s.name] != nil && !ok {
			return nil, fmt.Errorf("%s should be a list", s.name)
		}
		for i, item := range given {
			b, ok := item.(map[string]any)
			if !ok {
				return nil, fmt.Errorf("%s: item %d is not an object", s.name, i)
			}
			maps.DeleteFunc(b, func(_ string, v any) bool { return v == nil })
			if only != "" && !s.whole {
				b["vhost"] = only
			}
			for _, key := range s.need {
				if _, ok := b[key]; !ok {
					return nil, fmt.Errorf("%s: item %d: [{key_missing,%s}]", s.name, i, key)
				}
			}
			lists[s.name] = append(lists[s.name], b)
		}
	}
	return lists, nil
}

// all takes up all sections. An error says that the catalog has not taken a batch, or may have.
func (x *importer) all(lists map[string][]body) error {
	for _, s := range sections {
		for _, b := range lists[s.name] {
			if err := x.item(s, b); err != nil {
				return err
			}
		}
		if err := x.flush(); err != nil { // later sections refer to it
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(x.report.Taken)) {
		if x.report.Taken[name] == 0 {
			delete(x.report.Taken, name)
		}
	}
	return nil
}

func (x *importer) item(s section, b body) error {
	at := api.Skipped{Section: s.name, VHost: b.word("vhost"), Name: b.word("name")}
	if s.name == "bindings" {
		at.Name = b.word("source") + " → " + b.word("destination")
	} else if at.Name == "" {
		at.Name = b.word("user")
	}
	if x.only != "" && s.whole {
		x.skip(at, "it does not belong to a single vhost")
		return nil
	}
	commands, err := s.make(x, b)
	for _, c := range commands {
		if err != nil {
			break
		}
		_, err = x.catalog.View().CheckImport(c)
	}
	if err != nil {
		x.skip(at, err.Error())
		return nil
	}
	batch := importBatch
	if s.name == "policies" || s.name == "parameters" {
		batch = policyBatch
	}
	if x.size+len(commands) > batch {
		if err := x.flush(); err != nil {
			return err
		}
	}
	x.batch, x.size = append(x.batch, pending{at, commands}), x.size+len(commands)
	return nil
}

func (x *importer) skip(at api.Skipped, reason string) {
	x.report.SkippedTotal++
	if at.Reason = reason; len(x.report.Skipped) < maxSkipped {
		x.report.Skipped = append(x.report.Skipped, at)
	}
}

// warn reports what a definition that is taken does here otherwise than where it is from.
func (x *importer) warn(section, vhost, name, text string) {
	if len(x.report.Notes) < maxSkipped {
		x.report.Notes = append(x.report.Notes, api.Skipped{Section: section, VHost: vhost, Name: name, Reason: text})
	}
}

// warnOf reports that a definition differs from what is there, in a vhost that tolerates it.
func (x *importer) warnOf(section, vhost, name string, drift []catalog.Difference) {
	if len(drift) == 0 {
		return
	}
	var names []string
	for _, d := range drift {
		names = append(names, d.Argument)
	}
	row, _ := x.catalog.View().VHost(vhost)
	x.warn(section, vhost, name, "it is there with other arguments, and redeclare is "+catalog.RedeclareOf(row)+": "+strings.Join(names, ", "))
}

// flush commits the batch.
func (x *importer) flush() error {
	var commands []*logpb.CatalogCommand
	for _, p := range x.batch {
		commands = append(commands, p.commands...)
	}
	if len(commands) == 0 {
		for _, p := range x.batch {
			x.report.Taken[p.at.Section]++
		}
		x.batch = nil
		return nil
	}
	ctx, cancel := context.WithTimeout(x.ctx, importWait)
	defer cancel()
	results, err := x.catalog.Propose(ctx, commands...)
	if err != nil {
		return err
	}
	for _, p := range x.batch {
		var refused error
		for _, r := range results[:len(p.commands)] {
			if err := catalog.Refused(r); err != nil && refused == nil {
				refused = err
			}
		}
		if results = results[len(p.commands):]; refused != nil {
			x.skip(p.at, refused.Error())
		} else {
			x.report.Taken[p.at.Section]++
		}
	}
	x.batch, x.size = nil, 0
	return nil
}

func (x *importer) user(b body) (list []*logpb.CatalogCommand, err error) {
	name, err := b.text("name")
	if err != nil {
		return nil, err
	}
	m, err := x.users.userFrom(x.ctx, b)
	if err != nil {
		return nil, err
	}
	m.Name = name
	limits, err := b.object("limits")
	if err != nil {
		return nil, err
	}
	list = append(list, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutUser{PutUser: m}})
	return appendLimits(list, true, name, limits)
}

// appendLimits adds the commands that set limits.
func appendLimits(list []*logpb.CatalogCommand, user bool, of string, limits map[string]any) ([]*logpb.CatalogCommand, error) {
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		number, _ := limits[name].(json.Number)
		n, err := number.Int64()
		if err != nil {
			return nil, fsm.Refuse(fsm.Precondition, name+" should be an integer")
		}
		list = append(list, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutLimit{PutLimit: &logpb.PutLimit{User: user, Of: of, Name: name, Value: n}}})
	}
	return list, nil
}

func (x *importer) vhost(b body) ([]*logpb.CatalogCommand, error) {
	name, err := b.text("name")
	if err != nil {
		return nil, err
	}
	metadata, err := b.object("metadata")
	if err != nil {
		return nil, err
	}
	for _, key := range []string{"description", "tags", "default_queue_type", "redeclare"} {
		if _, given := b[key]; !given && metadata[key] != nil {
			b[key] = metadata[key]
		}
	}
	m, err := vhostFrom(b)
	if err != nil {
		return nil, err
	}
	m.Name = name
	if err := b.redeclare(x.catalog.View(), m); err != nil {
		return nil, err
	}
	x.catalog.View().PutVhostOfType(m, x.newType)
	return []*logpb.CatalogCommand{{Body: &logpb.CatalogCommand_PutVhost{PutVhost: m}}}, nil
}

func (x *importer) permission(b body) ([]*logpb.CatalogCommand, error) {
	m := &logpb.PutPermission{}
	err := b.texts(map[string]*string{"user": &m.User, "vhost": &m.Vhost})
	if err == nil {
		err = b.patterns(x.catalog.View(), map[string]*string{"configure": &m.Configure, "write": &m.Write, "read": &m.Read})
	}
	return []*logpb.CatalogCommand{{Body: &logpb.CatalogCommand_PutPermission{PutPermission: m}}}, err
}

func (x *importer) topicPermission(b body) ([]*logpb.CatalogCommand, error) {
	m := &logpb.PutTopicPermission{}
	err := b.texts(map[string]*string{"user": &m.User, "vhost": &m.Vhost, "exchange": &m.Exchange})
	if err == nil {
		err = b.patterns(x.catalog.View(), map[string]*string{"write": &m.Write, "read": &m.Read})
	}
	return []*logpb.CatalogCommand{{Body: &logpb.CatalogCommand_PutTopicPermission{PutTopicPermission: m}}}, err
}

// texts reads several strings of the body.
func (b body) texts(into map[string]*string) (err error) {
	for _, key := range slices.Sorted(maps.Keys(into)) {
		if *into[key], err = b.text(key); err != nil {
			return err
		}
	}
	return nil
}

func (x *importer) parameter(b body) ([]*logpb.CatalogCommand, error) {
	vhost, err := b.text("vhost")
	if err != nil {
		return nil, err
	}
	value, err := b.object("value")
	switch component := b.word("component"); {
	case component != operatorComponent && component != limitsComponent:
		return nil, fsm.Refuse(fsm.Precondition, "component "+component+" not found")
	case err != nil:
		return nil, err
	case component == limitsComponent:
		return appendLimits(nil, false, vhost, value)
	}
	p := maps.Clone(value)
	p["vhost"], p["name"] = vhost, b["name"]
	for _, key := range []string{"pattern", "definition"} {
		if _, ok := p[key]; !ok {
			return nil, fsm.Refuse(fsm.Precondition, "[{key_missing,"+key+"}]")
		}
	}
	return x.anyPolicy(p, true)
}

// globalParameter takes up a global parameter. Those that a cluster gives itself say nothing here.
func (x *importer) globalParameter(b body) ([]*logpb.CatalogCommand, error) {
	name, err := b.text("name")
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(name, "internal_") {
		return nil, nil // a cluster's own
	}
	c, err := putGlobalParameter(name, b["value"])
	if err != nil {
		return nil, err
	}
	return []*logpb.CatalogCommand{c}, nil
}

func (x *importer) policy(b body) ([]*logpb.CatalogCommand, error) { return x.anyPolicy(b, false) }

func (x *importer) anyPolicy(b body, operator bool) ([]*logpb.CatalogCommand, error) {
	m, err := policyFrom(b)
	if err != nil {
		return nil, err
	}
	if err := b.texts(map[string]*string{"vhost": &m.Vhost, "name": &m.Name}); err != nil {
		return nil, err
	}
	m.Operator = operator
	x.catalog.View().DecideKeys(m)
	if err := x.catalog.View().ValidatePolicy(m); err != nil {
		return nil, err
	}
	for _, text := range notesOn(m.GetApplyTo(), m.GetDefinition()) {
		x.warn(map[bool]string{false: "policies", true: "parameters"}[operator], m.Vhost, m.Name, text)
	}
	return []*logpb.CatalogCommand{{Body: &logpb.CatalogCommand_PutPolicy{PutPolicy: m}}}, nil
}

func (x *importer) exchange(b body) ([]*logpb.CatalogCommand, error) {
	s, err := b.spec()
	m := &logpb.DeclareExchange{Type: catalog.Direct, Durable: s.durable, AutoDelete: s.autoDelete, Arguments: s.arguments}
	if err == nil {
		err = b.texts(map[string]*string{"vhost": &m.Vhost, "name": &m.Name})
	}
	if err == nil && b["type"] != nil {
		m.Type, err = b.text("type")
	}
	if err == nil {
		m.Internal, err = b.flag("internal", false)
	}
	if err != nil || m.Name == "" || strings.HasPrefix(m.Name, "amq.") {
		return nil, err // every vhost has them
	}
	if m.Type == catalog.Delayed {
		m.StoreMembers = x.objects.Place(&logpb.DeclareQueue{})
	}
	v := x.catalog.View()
	if had, there := v.Exchange(m.Vhost, m.Name); there {
		x.warnOf("exchanges", m.Vhost, m.Name, had.Drift(v, m))
	}
	return []*logpb.CatalogCommand{{Body: &logpb.CatalogCommand_DeclareExchange{DeclareExchange: m}}}, nil
}

func (x *importer) queue(b body) ([]*logpb.CatalogCommand, error) {
	s, err := b.spec()
	m := &logpb.DeclareQueue{Durable: s.durable, AutoDelete: s.autoDelete, Arguments: s.arguments, Local: !s.durable}
	if err == nil {
		err = b.texts(map[string]*string{"vhost": &m.Vhost, "name": &m.Name})
	}
	if err != nil {
		return nil, err
	}
	m.PartOf, m.PartOfExchange = b.word("part_of"), b.word("part_of_kind") == kindOfExchange
	m.Members = x.objects.Place(m)
	kind := b.word("type")
	if s.durable && kind != "" && kind != catalog.QuorumType && kind != catalog.ClassicType {
		return nil, fsm.Refuse(fsm.Precondition, "unsupported queue type '"+kind+"'")
	}
	v := x.catalog.View()
	v.DecideType(m, kind)
	if had, there := v.Queue(m.Vhost, m.Name); there {
		x.warnOf("queues", m.Vhost, m.Name, had.Drift(v, m))
	}
	if kind == "" && !m.Local && !m.Classic && catalog.Untyped(m) {
		x.warn("queues", m.Vhost, m.Name, fmt.Sprintf("it has no type and becomes a quorum queue, the default of its vhost, with a delivery limit of %d unless one is set", catalog.DefaultDeliveryLimit))
	}
	return []*logpb.CatalogCommand{{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: m}}}, nil
}

// kindOfExchange is the word for an exchange where either that or a queue is named.
const kindOfExchange = "exchange"

// describe takes up what an application says of a queue or an exchange.
func (x *importer) describe(b body) ([]*logpb.CatalogCommand, error) {
	m, text, kind := &logpb.Describe{}, "", ""
	if err := b.texts(map[string]*string{"vhost": &m.Vhost, "name": &m.Name, "key": &m.Key, "kind": &kind, "text": &text}); err != nil {
		return nil, err
	}
	m.Text, m.Exchange = []byte(text), kind == kindOfExchange
	_, m.Changes = x.catalog.View().Described(m.Vhost, m.Key)
	return []*logpb.CatalogCommand{{Body: &logpb.CatalogCommand_Describe{Describe: m}}}, nil
}

func (x *importer) binding(b body) ([]*logpb.CatalogCommand, error) {
	m := &logpb.Bind{}
	err := b.texts(map[string]*string{"vhost": &m.Vhost, "source": &m.Source, "destination": &m.Destination, "routing_key": &m.RoutingKey})
	if err != nil {
		return nil, err
	}
	arguments, err := b.object("arguments")
	if len(arguments) > 0 {
		m.Arguments = tables.Of(arguments)
	}
	switch kind := b.word("destination_type"); kind {
	case "exchange":
		m.ToExchange = true
	case "queue":
	default:
		return nil, fsm.Refuse(fsm.Precondition, "destination_type should be queue or exchange, actually was "+kind)
	}
	if m.Source == "" {
		return nil, err // every queue has it
	}
	return []*logpb.CatalogCommand{{Body: &logpb.CatalogCommand_Bind{Bind: m}}}, err
}

// definitions serves all definitions of the cluster, or of one vhost, as one object.
type definitions struct {
	catalog Catalog
	users   users
	node    Node
	objects Objects
	seeds   *Seeds
	// newType is the queue type of new vhosts.
	newType string
}

// export answers with the definitions.
func (ds definitions) export(w *responder, r *request) {
	status := ds.node.Status()
	d := &api.Definitions{
		RabbitVersion: compatibility, RabbitMQVersion: compatibility, ProductName: "quorate", ProductVersion: ds.node.Version(),
		Format: "cluster", Cluster: status.Cluster, Explanation: "definitions of the cluster '" + status.Cluster + "'",
		Parameters: []api.Parameter{}, Policies: []api.DefinedPolicy{}, Queues: []api.DefinedQueue{}, Exchanges: []api.DefinedExchange{}, Bindings: []api.DefinedBinding{},
	}
	if vhost := r.PathValue("vhost"); vhost != "" {
		row, ok := r.view.VHost(vhost)
		if !ok {
			w.notFound()
			return
		}
		d.Format, d.Explanation = "single_virtual_host", "definitions of the vhost '"+vhost+"'"
		d.VHost, d.Description, d.DefaultQueueType = vhost, row.GetDescription(), catalog.DefaultTypeOf(row)
		_, limits := limitsOf(r.view, false)
		metadata := metadataOf(row)
		d.Metadata, d.Limits = &metadata, orNone(limits[vhost])
		exportVHost(r, d, vhost, "")
		w.export(d)
		return
	}
	exportUsers(r, d)
	for _, row := range r.view.VHosts() {
		name := row.GetName()
		d.VHosts = append(d.VHosts, api.DefinedVHost{Name: name, Description: row.GetDescription(), Tags: orEmpty(row.GetTags()), Metadata: metadataOf(row)})
		d.Parameters = append(d.Parameters, parametersOf(r, name)...)
		exportVHost(r, d, name, name)
	}
	w.export(d)
}

func metadataOf(row *logpb.PutVhost) api.VHostMetadata {
	m := api.VHostMetadata{Description: row.GetDescription(), Tags: orEmpty(row.GetTags()), DefaultQueueType: catalog.DefaultTypeOf(row)}
	if row.GetRedeclare() != logpb.PutVhost_STRICT {
		m.Redeclare = catalog.RedeclareOf(row)
	}
	return m
}

// exportUsers adds the users and what they may do.
func exportUsers(r *request, d *api.Definitions) {
	d.Users, d.Permissions, d.TopicPermissions = described(r.view.Users(), r.describeUser), orEmpty(r.permissions()), orEmpty(r.topicPermissions())
	d.GlobalParameters = slices.DeleteFunc(globalParametersOf(r), func(p api.GlobalParameter) bool { return p.Name == importedHash })
}

// exportVHost adds what is in a vhost. Left out are exclusive queues, stores of exchanges, and what
// every vhost has; called is how the objects name their vhost.
func exportVHost(r *request, d *api.Definitions, vhost, called string) {
	for _, p := range r.view.Policies(vhost, false) {
		d.Policies = append(d.Policies, api.DefinedPolicy{VHost: called, Name: p.Name, PolicyValue: policyValue(p)})
	}
	for _, q := range r.view.QueuesOf(vhost) {
		if !q.Exclusive && q.StoreOf == "" {
			of, ofExchange := q.Whole()
			x := api.DefinedQueue{Name: q.Name, VHost: called, Type: q.Type(), Durable: q.Durable, AutoDelete: q.AutoDelete, Arguments: tables.JSON(r.view.Arguments(q)), PartOf: of}
			if ofExchange {
				x.PartOfKind = kindOfExchange
			}
			d.Queues = append(d.Queues, x)
		}
	}
	for _, x := range r.view.Exchanges(vhost) {
		if !strings.HasPrefix(x.Name, "amq.") {
			d.Exchanges = append(d.Exchanges, api.DefinedExchange{
				Name: x.Name, VHost: called, Type: x.DeclaredType(), Durable: x.Durable, AutoDelete: x.AutoDelete, Internal: x.Internal, Arguments: tables.JSON(x.Arguments),
			})
		}
	}
	for _, m := range r.view.Descriptions(vhost) {
		x := api.DefinedDescription{VHost: called, Name: m.GetName(), Kind: "queue", Key: m.GetKey(), Text: string(m.GetText())}
		if m.GetExchange() {
			x.Kind = kindOfExchange
		}
		d.Descriptions = append(d.Descriptions, x)
	}
	for _, b := range r.view.Bindings(vhost) {
		if q, ok := r.view.Queue(vhost, b.Destination); ok && !b.ToExchange && q.Exclusive {
			continue
		}
		shown := describeBinding(b)
		d.Bindings = append(d.Bindings, api.DefinedBinding{
			Source: shown.Source, VHost: called, Destination: shown.Destination, DestinationType: shown.DestinationType, RoutingKey: shown.RoutingKey, Arguments: shown.Arguments,
		})
	}
}

func policyValue(p *catalog.Policy) api.PolicyValue {
	return api.PolicyValue{Pattern: p.Pattern, ApplyTo: p.ApplyTo, Definition: tables.JSON(p.Definition), Priority: p.Priority}
}

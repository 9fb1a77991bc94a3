package mgmt

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// need is what an endpoint asks of its caller: a tag, and beside it a right on
// the vhost in the path, which is another one's: to see it, or to read,
// write or configure the thing that the path names, or to read and write both ends of a binding.
type need struct {
	tag   level
	right string
}

// needs says for every endpoint what it asks for. Whoever adds one adds a row.
var needs = map[string]need{
	"GET /api/version":                    {tag: management},
	"GET /api/overview":                   {tag: management},
	"GET /api/whoami":                     {tag: management},
	"GET /api/quorate/replicas":           {tag: administrator},
	"GET /api/quorate/status":             {tag: administrator},
	"GET /api/quorate/clock":              {tag: administrator},
	"GET /api/quorate/settings":           {tag: administrator},
	"GET /api/config/effective":           {tag: administrator},
	"GET /api/index.html":                 {tag: management},
	"GET /readyz":                         {},
	"GET /healthz":                        {},
	"GET /api/healthchecks/node":          {tag: management},
	"GET /api/healthchecks/node/{node}":   {tag: management},
	"PUT /api/quorate/settings/{name}":    {tag: administrator},
	"DELETE /api/quorate/settings/{name}": {tag: administrator},
	"POST /api/quorate/settle":            {tag: administrator},
	"GET /api/quorate/pprof/{profile}":    {tag: administrator},

	"GET /api/health/checks/ready-to-serve-clients":                                                {},
	"GET /api/health/checks/is-in-service":                                                         {},
	"GET /api/health/checks/is-alive":                                                              {},
	"GET /api/health/checks/alarms":                                                                {tag: management},
	"GET /api/health/checks/local-alarms":                                                          {tag: management},
	"GET /api/health/checks/quarantined-queues":                                                    {tag: management},
	"GET /api/health/checks/parked-messages":                                                       {tag: management},
	"GET /api/health/checks/closed-replicas":                                                       {tag: management},
	"GET /api/health/checks/unproven-replicas":                                                     {tag: management},
	"GET /api/health/checks/leaders-make-progress":                                                 {tag: management},
	"GET /api/health/checks/certificate-expiration/{within}/{unit}":                                {tag: management},
	"GET /api/health/checks/node-is-quorum-critical":                                               {tag: management},
	"GET /api/health/checks/quorum-queues-without-elected-leaders/all-vhosts":                      {tag: management},
	"GET /api/health/checks/quorum-queues-without-elected-leaders/all-vhosts/pattern/{pattern}":    {tag: management},
	"GET /api/health/checks/quorum-queues-without-elected-leaders/vhost/{vhost}":                   {management, "see"},
	"GET /api/health/checks/quorum-queues-without-elected-leaders/vhost/{vhost}/pattern/{pattern}": {management, "see"},

	"PUT /api/cluster-name":                              {tag: administrator},
	"PUT /api/feature-flags/{name}/enable":               {tag: administrator},
	"GET /api/health/checks/reached-target-cluster-size": {tag: management},
	"GET /api/nodes/{node}/memory":                       {tag: monitoring},
	"POST /api/vhosts/{vhost}/deletion/protection":       {tag: administrator},
	"DELETE /api/vhosts/{vhost}/deletion/protection":     {tag: administrator},
	"POST /api/vhosts/{vhost}/start/{node}":              {tag: administrator},
	"GET /api/global-parameters/{name}":                  {tag: policymaker},
	"PUT /api/global-parameters/{name}":                  {tag: administrator},
	"DELETE /api/global-parameters/{name}":               {tag: administrator},
	"GET /api/auth/hash_password/{password}":             {tag: administrator},

	"GET /api/nodes": {tag: monitoring},
	"GET /api/queues/{vhost}/{name}/deferred":                  {management, "read"},
	"GET /api/queues/{vhost}/{name}/groups":                    {management, "read"},
	"POST /api/queues/{vhost}/{name}/unpark":                   {management, "read"},
	"POST /api/queues/{vhost}/{name}/kick":                     {management, "read"},
	"GET /api/queues/{vhost}/{name}/scaling":                   {management, "see"},
	"POST /api/queues/{vhost}/{name}/pause":                    {management, "configure"},
	"POST /api/queues/{vhost}/{name}/resume":                   {management, "configure"},
	"GET /api/queues/quorum/{vhost}/{name}/status":             {management, "see"},
	"POST /api/rebalance/queues":                               {tag: administrator},
	"POST /api/quorate/rebalance":                              {tag: administrator},
	"PUT /api/quorate/queues/{vhost}/{name}/leader":            {tag: administrator},
	"DELETE /api/quorate/queues/{vhost}/{name}/quarantine":     {tag: administrator},
	"GET /api/quorate/queues/{vhost}/{name}/verify":            {tag: administrator},
	"GET /api/quorate/catalog/verify":                          {tag: administrator},
	"PUT /api/quorate/limits/{name}":                           {tag: administrator},
	"POST /api/quorate/backup":                                 {tag: administrator},
	"POST /api/quorate/restore":                                {tag: administrator},
	"POST /api/quorate/queues/{vhost}/{name}/export":           {tag: administrator},
	"POST /api/quorate/queues/{vhost}/{name}/import":           {tag: administrator},
	"POST /api/quorate/drain":                                  {tag: administrator},
	"POST /api/quorate/revive":                                 {tag: administrator},
	"POST /api/queues/quorum/{vhost}/{name}/replicas/add":      {tag: administrator},
	"DELETE /api/queues/quorum/{vhost}/{name}/replicas/delete": {tag: administrator},
	"POST /api/queues/quorum/replicas/on/{node}/grow":          {tag: administrator},
	"DELETE /api/queues/quorum/replicas/on/{node}/shrink":      {tag: administrator},
	"POST /api/queues/quorum/replicas/grow-to-count":           {tag: administrator},
	"DELETE /api/nodes/{node}":                                 {tag: administrator},
	"GET /api/quorate/tokens":                                  {tag: administrator},
	"POST /api/quorate/tokens":                                 {tag: administrator},
	"DELETE /api/quorate/tokens/{id}":                          {tag: administrator},

	"GET /api/vhosts":                     {tag: management},
	"GET /api/vhosts/{vhost}":             {management, "see"},
	"PUT /api/vhosts/{vhost}":             {tag: administrator},
	"DELETE /api/vhosts/{vhost}":          {tag: administrator},
	"GET /api/vhosts/{vhost}/permissions": {tag: administrator},
	"GET /api/vhosts/{vhost}/connections": {management, "see"},

	"GET /api/queues":                                                      {tag: management},
	"GET /api/queues/{vhost}":                                              {management, "see"},
	"GET /api/queues/{vhost}/{name}":                                       {management, "see"},
	"GET /api/queues/{vhost}/{name}/bindings":                              {management, "see"},
	"GET /api/queues/{vhost}/{name}/consumers":                             {management, "see"},
	"POST /api/queues/{vhost}/{name}/get":                                  {management, "see"}, // Node.Take asks for read
	"GET /api/queues/detailed":                                             {tag: management},
	"PUT /api/queues/{vhost}/{name}":                                       {management, "configure"},
	"DELETE /api/queues/{vhost}/{name}":                                    {management, "configure"},
	"DELETE /api/queues/{vhost}/{name}/contents":                           {management, "read"},
	"POST /api/queues/{vhost}/{name}/actions":                              {management, "see"}, // its actions ask for administrator
	"PUT /api/exchanges/{vhost}/{name}":                                    {management, "configure"},
	"DELETE /api/exchanges/{vhost}/{name}":                                 {management, "configure"},
	"POST /api/exchanges/{vhost}/{name}/publish":                           {management, "write"},
	"POST /api/queues/{vhost}/{name}/messages/delete":                      {management, "read"},
	"POST /api/queues/{vhost}/{name}/messages/move":                        {management, "read"}, // and write, where they go
	"POST /api/queues/{vhost}/{name}/messages/copy":                        {management, "read"},
	"POST /api/queues/{vhost}/{name}/redrive":                              {management, "read"},
	"DELETE /api/queues/{vhost}/{name}/redrive":                            {management, "read"},
	"GET /api/queues/{vhost}/{name}/letters":                               {management, "read"},
	"GET /api/queues/{vhost}/{name}/messages/peek":                         {management, "read"},
	"GET /api/queues/{vhost}/{name}/deaths":                                {management, "read"},
	"GET /api/queues/{vhost}/{name}/explain":                               {management, "read"},
	"POST /api/queues/{vhost}/{name}/locks/{token}/renew":                  {management, "read"},
	"POST /api/queues/{vhost}/{name}/locks/{token}/settle":                 {management, "read"},
	"GET /api/queues/{vhost}/{name}/scheduled":                             {management, "read"},
	"DELETE /api/queues/{vhost}/{name}/scheduled":                          {management, "read"},
	"DELETE /api/queues/{vhost}/{name}/scheduled/{id}":                     {management, "read"},
	"PATCH /api/queues/{vhost}/{name}/scheduled/{id}":                      {management, "read"},
	"POST /api/queues/{vhost}/{name}/scheduled/{id}/fire":                  {management, "read"},
	"GET /api/queues/{vhost}/{name}/timeouts":                              {management, "see"},
	"GET /api/quorate/time":                                                {tag: management},
	"GET /api/quorate/time/queues":                                         {tag: management},
	"GET /api/quorate/time/queues/{vhost}":                                 {management, "see"},
	"GET /api/quorate/timeouts":                                            {tag: management},
	"GET /api/quorate/timeouts/{vhost}":                                    {management, "see"},
	"GET /api/drift":                                                       {tag: management},
	"GET /api/drift/{vhost}":                                               {management, "see"},
	"GET /api/consumers":                                                   {tag: management},
	"GET /api/consumers/{vhost}":                                           {management, "see"},
	"GET /api/exchanges":                                                   {tag: management},
	"GET /api/exchanges/{vhost}":                                           {management, "see"},
	"GET /api/exchanges/{vhost}/{name}":                                    {management, "see"},
	"GET /api/exchanges/{vhost}/{name}/bindings/source":                    {management, "see"},
	"GET /api/exchanges/{vhost}/{name}/bindings/destination":               {management, "see"},
	"GET /api/exchanges/{vhost}/{name}/delayed":                            {management, "write"},
	"DELETE /api/exchanges/{vhost}/{name}/delayed":                         {management, "write"},
	"DELETE /api/exchanges/{vhost}/{name}/delayed/{id}":                    {management, "write"},
	"PATCH /api/exchanges/{vhost}/{name}/delayed/{id}":                     {management, "write"},
	"POST /api/exchanges/{vhost}/{name}/delayed/{id}/fire":                 {management, "write"},
	"GET /api/bindings":                                                    {tag: management},
	"GET /api/bindings/{vhost}":                                            {management, "see"},
	"GET /api/bindings/{vhost}/e/{source}/q/{destination}":                 {management, "see"},
	"POST /api/bindings/{vhost}/e/{source}/q/{destination}":                {management, "bind"},
	"GET /api/bindings/{vhost}/e/{source}/q/{destination}/{properties}":    {management, "see"},
	"DELETE /api/bindings/{vhost}/e/{source}/q/{destination}/{properties}": {management, "bind"},
	"GET /api/bindings/{vhost}/e/{source}/e/{destination}":                 {management, "see"},
	"POST /api/bindings/{vhost}/e/{source}/e/{destination}":                {management, "bind"},
	"GET /api/bindings/{vhost}/e/{source}/e/{destination}/{properties}":    {management, "see"},
	"DELETE /api/bindings/{vhost}/e/{source}/e/{destination}/{properties}": {management, "bind"},
	"GET /api/vhosts/{vhost}/channels":                                     {management, "see"},
	"GET /api/channels":                                                    {tag: management},
	"GET /api/channels/{name}":                                             {tag: monitoring}, // root's
	"GET /api/connections/{connection}/channels":                           {tag: monitoring}, // root's
	"GET /api/connections/{connection}/sessions":                           {tag: monitoring}, // likewise
	"GET /api/connections":                                                 {tag: management},
	"GET /api/connections/{name}":                                          {tag: monitoring}, // root's
	"DELETE /api/connections/{name}":                                       {tag: administrator},
	"GET /api/connections/username/{user}":                                 {tag: management}, // others see none
	"DELETE /api/connections/username/{user}":                              {tag: administrator},

	"GET /api/openapi.json":                                       {tag: management},
	"GET /api/cluster-name":                                       {tag: management},
	"GET /api/extensions":                                         {tag: management},
	"GET /api/feature-flags":                                      {tag: monitoring},
	"DELETE /api/reset":                                           {tag: administrator},
	"DELETE /api/reset/{node}":                                    {tag: administrator},
	"GET /api/auth/attempts/{node}":                               {tag: monitoring},
	"DELETE /api/auth/attempts/{node}":                            {tag: administrator},
	"GET /api/auth/attempts/{node}/source":                        {tag: monitoring},
	"DELETE /api/auth/attempts/{node}/source":                     {tag: administrator},
	"GET /api/health/checks/below-node-connection-limit":          {tag: management},
	"GET /api/deprecated-features":                                {tag: monitoring},
	"GET /api/deprecated-features/used":                           {tag: monitoring},
	"GET /api/health/checks/port-listener/{port}":                 {tag: management},
	"GET /api/health/checks/protocol-listener/{protocols}":        {tag: management},
	"GET /api/health/checks/virtual-hosts":                        {tag: management},
	"GET /api/health/checks/metadata-store/initialized":           {tag: management},
	"GET /api/health/checks/metadata-store/initialized/with-data": {tag: management},
	"GET /api/aliveness-test/{vhost}":                             {management, "see"},
	"GET /api/nodes/{node}":                                       {tag: monitoring},
	"GET /api/users/without-permissions":                          {tag: administrator},
	"POST /api/users/bulk-delete":                                 {tag: administrator},
	"GET /api/definitions":                                        {tag: administrator},
	"POST /api/definitions":                                       {tag: administrator},
	"GET /api/all-configuration":                                  {tag: administrator},
	"POST /api/all-configuration":                                 {tag: administrator},
	"GET /api/definitions/{vhost}":                                {tag: administrator},
	"POST /api/definitions/{vhost}":                               {tag: administrator},
	"GET /api/parameters":                                         {tag: policymaker},
	"GET /api/parameters/{component}":                             {tag: policymaker},
	"GET /api/parameters/{component}/{vhost}":                     {policymaker, "see"},
	"GET /api/parameters/{component}/{vhost}/{name}":              {policymaker, "see"},
	"PUT /api/parameters/{component}/{vhost}/{name}":              {policymaker, "see"},
	"DELETE /api/parameters/{component}/{vhost}/{name}":           {policymaker, "see"},
	"GET /api/global-parameters":                                  {tag: policymaker},

	"GET /api/policies":                              {tag: management},
	"GET /api/policies/{vhost}":                      {management, "see"},
	"GET /api/policies/{vhost}/{name}":               {management, "see"},
	"PUT /api/policies/{vhost}/{name}":               {policymaker, "see"},
	"DELETE /api/policies/{vhost}/{name}":            {policymaker, "see"},
	"POST /api/policies/{vhost}/{name}/try":          {policymaker, "see"},
	"POST /api/operator-policies/{vhost}/{name}/try": {tag: administrator},
	"GET /api/operator-policies":                     {tag: policymaker},
	"GET /api/operator-policies/{vhost}":             {policymaker, "see"},
	"GET /api/operator-policies/{vhost}/{name}":      {policymaker, "see"},
	"PUT /api/operator-policies/{vhost}/{name}":      {tag: administrator},
	"DELETE /api/operator-policies/{vhost}/{name}":   {tag: administrator},

	"GET /api/users":                                          {tag: administrator},
	"GET /api/users/{user}":                                   {tag: administrator},
	"PUT /api/users/{user}":                                   {tag: administrator},
	"DELETE /api/users/{user}":                                {tag: administrator},
	"GET /api/users/{user}/permissions":                       {tag: administrator},
	"GET /api/users/{user}/topic-permissions":                 {tag: administrator},
	"GET /api/vhosts/{vhost}/topic-permissions":               {tag: administrator},
	"GET /api/topic-permissions":                              {tag: administrator},
	"GET /api/topic-permissions/{vhost}/{user}":               {tag: administrator},
	"PUT /api/topic-permissions/{vhost}/{user}":               {tag: administrator},
	"DELETE /api/topic-permissions/{vhost}/{user}":            {tag: administrator},
	"GET /api/topic-permissions/{vhost}/{user}/{exchange}":    {tag: administrator},
	"DELETE /api/topic-permissions/{vhost}/{user}/{exchange}": {tag: administrator},
	"GET /api/permissions":                                    {tag: administrator},
	"GET /api/permissions/{vhost}/{user}":                     {tag: administrator},
	"PUT /api/permissions/{vhost}/{user}":                     {tag: administrator},
	"DELETE /api/permissions/{vhost}/{user}":                  {tag: administrator},
	"GET /api/vhost-limits":                                   {tag: management},
	"GET /api/vhost-limits/{vhost}":                           {management, "see"},
	"PUT /api/vhost-limits/{vhost}/{name}":                    {tag: administrator},
	"DELETE /api/vhost-limits/{vhost}/{name}":                 {tag: administrator},
	"GET /api/user-limits":                                    {tag: administrator},
	"GET /api/user-limits/{user}":                             {tag: administrator},
	"PUT /api/user-limits/{user}/{name}":                      {tag: administrator},
	"DELETE /api/user-limits/{user}/{name}":                   {tag: administrator},
}

// caller is a user with a tag and, unless it has none, rights in the vhost.
type caller struct {
	name, tag string
	rights    []string // see, read, write
}

// passes reports whether an endpoint lets a caller in.
func (c caller) passes(n need) bool {
	tagged := n.tag == anybody || slices.Contains(levels[n.tag].tags, c.tag)
	switch n.right {
	case "":
		return tagged
	case "see":
		return tagged && (len(c.rights) > 0 || slices.Contains(levels[monitoring].tags, c.tag))
	}
	if n.right == "bind" {
		return tagged && slices.Contains(c.rights, "read") && slices.Contains(c.rights, "write")
	}
	return tagged && slices.Contains(c.rights, n.right)
}

// things makes all that paths name in a vhost of somebody else's, and the callers.
func (w *world) things(callers []caller) {
	w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutVhost{PutVhost: &logpb.PutVhost{Name: "v"}}})
	delayed := &fsm.Table{Fields: []*logpb.Field{{Name: "x-delayed-type", Value: &logpb.Value{Tag: 'S', Str: []byte("direct")}}}}
	w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareExchange{DeclareExchange: &logpb.DeclareExchange{Vhost: "v", Name: "thing", Type: catalog.Delayed, Durable: true, Arguments: delayed}}})
	w.queue("v", "thing", false)
	for _, c := range callers {
		w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutUser{PutUser: &logpb.PutUser{Name: c.name, Tags: []string{c.tag}}}})
		if len(c.rights) == 0 {
			continue
		}
		p := &logpb.PutPermission{User: c.name, Vhost: "v"}
		if slices.Contains(c.rights, "read") {
			p.Read = "^thing$"
		}
		if slices.Contains(c.rights, "write") {
			p.Write = "^thing$"
		}
		if slices.Contains(c.rights, "configure") {
			p.Configure = "^thing$"
		}
		w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutPermission{PutPermission: p}})
	}
	for _, toExchange := range []bool{false, true} {
		w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_Bind{Bind: &logpb.Bind{Vhost: "v", Source: "thing", Destination: "thing", ToExchange: toExchange}}})
	}
	definition := &fsm.Table{Fields: []*logpb.Field{{Name: "max-length", Value: &logpb.Value{Tag: 'l', Int: 1}}}}
	for _, operator := range []bool{false, true} {
		w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutPolicy{PutPolicy: &logpb.PutPolicy{Vhost: "v", Name: "thing", Operator: operator, ApplyTo: "all", Definition: definition}}})
	}
	w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutTopicPermission{PutTopicPermission: &logpb.PutTopicPermission{User: "root", Vhost: "v", Exchange: "thing"}}})
	w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutPermission{PutPermission: &logpb.PutPermission{User: "root", Vhost: "v", Configure: ".*", Write: ".*", Read: ".*"}}})
	w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutGlobalParameter{PutGlobalParameter: &logpb.PutGlobalParameter{Name: "thing", Value: []byte("1")}}})
	w.clients = []api.Connection{{Name: "thing", Node: "n1", User: "root", VHost: "v", Protocol: api.AMQP10}}
	w.channels = []api.Channel{{Name: "thing", User: "root", VHost: "v", Connection: api.ConnectionDetails{Name: "thing"}}}
}

// TestRightsAtEveryEndpoint: who gets in where, with each tag, in a vhost of their own and in another one's. Those who
// are kept out get 401 or 404 and nothing else; those who get in get neither. Lists tell nobody of what is in vhosts
// that they do not see.
func TestRightsAtEveryEndpoint(t *testing.T) {
	callers := []caller{
		{name: "untagged", rights: []string{"see", "read", "write"}}, {name: "stranger", tag: "management"},
		{"seer", "management", []string{"see"}}, {"reader", "management", []string{"see", "read"}}, {"writer", "management", []string{"see", "write"}},
		{"builder", "management", []string{"see", "configure"}}, {"binder", "management", []string{"see", "read", "write"}},
		{"maker", "policymaker", []string{"see"}}, {name: "outside", tag: "policymaker"}, {name: "watch", tag: "monitoring"},
		{"watcher", "monitoring", []string{"see", "read"}}, {name: "chief", tag: "administrator"},
	}
	all := append([]caller{{}, {"root", "administrator", []string{"see", "read", "write", "configure"}}}, callers...)
	paths := strings.NewReplacer("{vhost}", "v", "{name}", "thing", "{user}", "root", "{exchange}", "thing", "{id}", "1", "{token}", "T", "{pattern}", ".", "{node}", "n1", "{profile}", "heap", "{source}", "thing", "{destination}", "thing", "{properties}", "~", "{port}", "5672", "{protocols}", "amqp", "{component}", "operator_policy", "{connection}", "thing", "{password}", "secret")
	bodies := map[string]string{
		"PUT /api/policies/{vhost}/{name}":           `{"pattern":"^thing$","definition":{"max-length":2}}`,
		"PUT /api/quorate/limits/{name}":             `{"absolute":"1"}`,
		"POST /api/queues/{vhost}/{name}/actions":    `{"action":"none"}`,
		"POST /api/exchanges/{vhost}/{name}/publish": `{"properties":{},"routing_key":"","payload":"","payload_encoding":"string"}`,
		"POST /api/queues/{vhost}/{name}/get":        `{"count":0,"ackmode":"ack_requeue_true","encoding":"auto"}`,

		"POST /api/queues/{vhost}/{name}/locks/{token}/settle": `{"outcome":"ack"}`,
	}
	routes := 0
	still := newWorld(t) // what only asks leaves it as it is
	still.things(callers)
	for _, x := range still.server.resources {
		for _, e := range x.endpoints {
			what := e.method + " " + x.path
			n, known := needs[what]
			if !known {
				t.Errorf("%s: nobody has said who gets in", what)
				continue
			}
			for _, c := range all {
				w, body := still, bodies[what]
				if e.method != http.MethodGet {
					w = newWorld(t)
					w.things(callers)
					body = cmp.Or(body, "{}")
				}
				path := paths.Replace(strings.NewReplacer("limits/{name}", "limits/disk_free_limit", "flags/{name}", "flags/fsm_version_1").Replace(x.path))
				status := w.statusOf(c.name, e.method, path, body)
				if kept := status == 401 || status == 404; kept == c.passes(n) {
					t.Errorf("%s by %q: %d", what, c.name, status)
				}
				if c.name == "stranger" && e.method == http.MethodGet && n.tag <= management {
					if answer := w.answerTo(c.name, e.method, path); strings.Contains(answer, `"thing"`) {
						t.Errorf("%s tells a stranger of another vhost's things: %s", what, answer)
					}
				}
			}
			routes++
		}
	}
	if routes != len(needs) {
		t.Errorf("%d of the endpoints in the table are there, %d are listed", routes, len(needs))
	}
}

// answerTo is the text of an answer; empty if it needs more of a node than there is here.
func (w *world) answerTo(user, method, path string) (answer string) {
	defer func() { _ = recover() }()
	return w.request(user, method, path, "").Body.String()
}

// statusOf makes a request. What needs more of a node than there is here answers 0:
// it has been let in.
func (w *world) statusOf(user, method, path, body string) (status int) {
	defer func() {
		if recover() != nil {
			status = 0
		}
	}()
	return w.request(user, method, path, body).Code
}

// TestAuthorsOfPolicies: nobody has messages go elsewhere by a policy who could
// not have them go there by a declare.
func TestAuthorsOfPolicies(t *testing.T) {
	refused := failure("not_authorised", "Access refused.")
	for _, c := range []struct {
		write, read, pattern, applyTo, definition string
		ok                                        bool
	}{
		{".*", ".*", "", "all", `"dead-letter-exchange":"x","alternate-exchange":"y"`, true},
		{"", ".*", "", "all", `"max-length":1,"message-ttl":1`, true},
		{"", ".*", "", "queues", `"dead-letter-exchange":"x"`, false},
		{"^x$", ".*", "", "queues", `"dead-letter-exchange":"x"`, true},
		{"^x$", ".*", "", "queues", `"dead-letter-exchange":""`, false},
		{"^amq.default$", ".*", "", "queues", `"dead-letter-exchange":"","dead-letter-routing-key":"mine"`, true},
		{"^x$", "", "", "queues", `"dead-letter-exchange":"x"`, false},
		{"^x$", "^mine", "", "queues", `"dead-letter-exchange":"x"`, false},
		{"^x$", "^mine", "^mine\\\\.", "queues", `"dead-letter-exchange":"x"`, true},
		{"^x$", "^mine", "^mine|^yours", "queues", `"dead-letter-exchange":"x"`, false},
		{"^x$", "^mine$", "^mine", "queues", `"dead-letter-exchange":"x"`, false},
		{"", "^mine", "^yours", "queues", `"dead-letter-routing-key":"mine"`, false},
		{"^x$", "", "", "exchanges", `"dead-letter-exchange":"x"`, true}, // means nothing there
		{"", ".*", "", "exchanges", `"alternate-exchange":"x"`, false},
		{"^x$", "", "", "exchanges", `"alternate-exchange":"x"`, false},
		{"^x$", ".*", "", "exchanges", `"alternate-exchange":"x"`, true},
		{"", "", "", "classic_queues", `"alternate-exchange":"x"`, true}, // means nothing there
	} {
		w := newWorld(t)
		w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutPermission{PutPermission: &logpb.PutPermission{User: "polly", Vhost: "/", Write: c.write, Read: c.read}}})
		x := want{"polly", "PUT", "/api/policies/%2F/p", fmt.Sprintf(`{"pattern":"%s","apply-to":"%s","definition":{%s}}`, c.pattern, c.applyTo, c.definition), 401, refused}
		if c.ok {
			x.status, x.answer = 201, ""
		}
		w.check(x)
		x.user, x.status, x.answer = "root", 201, ""
		if c.ok {
			x.status = 204
		}
		w.check(x)
	}
}

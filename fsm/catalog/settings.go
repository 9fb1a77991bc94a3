package catalog

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Names of the cluster-wide settings.
const (
	// MaxClockSkew is by how many milliseconds the nodes' wall clocks may differ.
	MaxClockSkew = "max_clock_skew"
	// AutoDeleteOnIdleMin is the least x-auto-delete-on-idle in milliseconds.
	AutoDeleteOnIdleMin = "auto_delete_on_idle_min"
	// FSMVersion is the version of all machines, see View.FSMVersion.
	FSMVersion = "fsm_version"
	// LockCredit is how many milliseconds without a leader are credited to the
	// holders of messages.
	LockCredit = "leader_change_lock_credit"
	// ScheduleMaxDelay is the longest x-delay in milliseconds.
	ScheduleMaxDelay = "schedule_max_delay"
	// MaxArgumentBytes and MaxArgumentValues bound the arguments of one queue,
	// exchange or binding, and other values that are given as a whole.
	MaxArgumentBytes  = "max_argument_bytes"
	MaxArgumentValues = "max_argument_values"
	// MaxBindings bounds the bindings of one exchange, and those to one
	// destination.
	MaxBindings = "max_bindings"
	// The maximum numbers of queues, exchanges and vhosts.
	ClusterQueueLimit    = "cluster_queue_limit"
	ClusterExchangeLimit = "cluster_exchange_limit"
	VHostMax             = "vhost_max"
	// The limits of vhosts and users that have none of their own.
	VHostMaxQueues      = "vhost_max_queues"
	VHostMaxConnections = "vhost_max_connections"
	UserMaxConnections  = "user_max_connections"
	UserMaxChannels     = "user_max_channels"
)

// Setting is a cluster-wide setting: a whole number from Low to High. Low ≤
// Default ≤ High. About is a phrase for listings, with the unit. The table is
// part of the program, only values given are replicated: a new Default changes
// every cluster that has given none, so Apply's outcome may depend on it only
// with a new version.
type Setting struct {
	Name               string
	Default, Low, High int64
	About              string
}

// settings lists all settings, by name.
var settings = []Setting{
	{AutoDeleteOnIdleMin, 300_000, 1, MaxTTL, "ms: the shortest idle time after which queues declared from now on may be deleted"},
	{ClusterExchangeLimit, 100_000, 0, 1 << 32, "exchanges of all vhosts together"},
	{ClusterQueueLimit, 200_000, 0, 1 << 32, "queues of all vhosts together"},
	{FSMVersion, 1, 1, 1 << 16, "version of the replicated state; it rises by itself when all nodes support the next one, and never falls"},
	{LockCredit, 30_000, 0, 86_400_000, "ms: at most so much of the time before a new leader's first entry is not counted against consumer timeouts"},
	{MaxArgumentBytes, 4096, 0, 1 << 20, "bytes, as encoded, of the arguments of a queue, an exchange, a binding or a consumer, of a policy's definition, and of the tags and descriptions of users and vhosts"},
	{MaxArgumentValues, 256, 0, 1 << 20, "values, including nested ones, in anything that max_argument_bytes limits"},
	{MaxBindings, 200_000, 0, 1 << 32, "bindings of an exchange, and bindings to a queue or an exchange"},
	{MaxClockSkew, 1000, 10, 3_600_000, "ms: by how much the nodes' wall clocks may differ before an alarm is raised; larger steps forward wait for a new leader"},
	{ScheduleMaxDelay, MaxTTL, 1, 1 << 53, "ms: the largest x-delay that a delayed exchange accepts"},
	{UserMaxChannels, 200_000, 0, 1 << 32, "channels of a user on each node, if the user has no limit of its own"},
	{UserMaxConnections, 20_000, 0, 1 << 32, "connections of a user on each node, if the user has no limit of its own"},
	{VHostMax, 10_000, 0, 1 << 32, "vhosts"},
	{VHostMaxConnections, 50_000, 0, 1 << 32, "connections to a vhost on each node, if the vhost has no limit of its own"},
	{VHostMaxQueues, 100_000, 0, 1 << 32, "queues of a vhost, if it has no limit of its own"},
}

// Settings lists the cluster-wide settings by name. The list is new.
func Settings() []Setting { return slices.Clone(settings) }

// findSetting finds a row of settings, or of the configured values. It returns
// where the row is, or would be inserted. Requires: rows ascend by name.
func findSetting[T any](rows []T, name string, nameOf func(T) string) (int, bool) {
	return slices.BinarySearchFunc(rows, name, func(row T, name string) int { return cmp.Compare(nameOf(row), name) })
}

func settingName(s Setting) string { return s.Name }

// clusterSettings are the configured values of cluster-wide settings.
//
// Invariant: givenRows ascend by name, each name once, and each value is valid
// for its setting. The slice is replaced, never changed. A row for each setting
// that was given a value, even its default.
type clusterSettings struct{ givenRows []*logpb.PutSetting }

// Setting returns the value of a cluster-wide setting, which must be one of
// Settings. Any other name panics: it is a mistake of the program. Two binary
// searches, no allocation.
func (s *clusterSettings) Setting(name string) int64 {
	if i, ok := findSetting(s.givenRows, name, (*logpb.PutSetting).GetName); ok {
		return s.givenRows[i].Value
	}
	i, ok := findSetting(settings, name, settingName)
	if !ok {
		panic("catalog: no setting " + name)
	}
	return settings[i].Default
}

// put sets a value, or resets it. The version may rise to what all nodes
// support.
//
// It performs PutSetting. A value outside of Low to High is refused; what
// exists is not checked against a new one. On return with Changed the slice is
// another one, so earlier Views keep theirs.
func (s *clusterSettings) put(m *logpb.PutSetting, all *nodes) (*logpb.CatalogResult, error) {
	if err := checkSetting(m); err != nil {
		return nil, err
	}
	if m.GetName() == FSMVersion {
		if err := s.checkRaise(m, all); err != nil {
			return nil, err
		}
		if m.GetValue() == s.Setting(FSMVersion) {
			return &logpb.CatalogResult{}, nil
		}
	}
	i, given := findSetting(s.givenRows, m.GetName(), (*logpb.PutSetting).GetName)
	next := slices.Clone(s.givenRows)
	switch {
	case m.GetUnset() && !given, given && !m.GetUnset() && s.givenRows[i].Value == m.GetValue():
		return &logpb.CatalogResult{}, nil
	case m.GetUnset():
		next = slices.Delete(next, i, i+1)
	case given:
		next[i] = m
	default:
		next = slices.Insert(next, i, m)
	}
	s.givenRows = next
	return &logpb.CatalogResult{Changed: true}, nil
}

// checkSetting depends on the table of this program alone.
func checkSetting(m *logpb.PutSetting) error {
	i, ok := findSetting(settings, m.GetName(), settingName)
	if !ok {
		return refuse(fsm.NotFoundKind, "no cluster setting '%s'", m.GetName())
	}
	if s := settings[i]; !m.GetUnset() && (m.GetValue() < s.Low || m.GetValue() > s.High) {
		return refuse(fsm.Precondition, "cluster setting '%s' must be a whole number from %d to %d, not %d", s.Name, s.Low, s.High, m.GetValue())
	}
	return nil
}

// save writes the section of the settings in a snapshot, and restore is its
// inverse.
func (s *clusterSettings) save(to *logpb.CatalogSnapshot)      { to.Settings = s.givenRows }
func (s *clusterSettings) restore(from *logpb.CatalogSnapshot) { s.givenRows = from.GetSettings() }

func (s *clusterSettings) describe(b *strings.Builder) {
	for _, m := range s.givenRows {
		fmt.Fprintf(b, "setting %s=%d\n", m.Name, m.Value)
	}
}

func (s *clusterSettings) check() error {
	for i, m := range s.givenRows {
		if err := checkSetting(m); err != nil {
			return err
		}
		if m.GetUnset() || i > 0 && s.givenRows[i-1].Name >= m.Name {
			return fmt.Errorf("cluster setting %q is out of place", m.Name)
		}
	}
	return nil
}

// Bounds of global parameters.
const (
	maxGlobals     = 1000
	maxGlobalBytes = 64 << 10 // of the JSON text of one value
)

// ClusterName is the global parameter with the name of the cluster.
const ClusterName = "cluster_name"

// globals are the global runtime parameters: values that clients and tools keep here. No machine
// depends on them.
//
// Invariant: globalRows ascend by name, each name once. The slice is replaced, never changed.
type globals struct{ globalRows []*logpb.PutGlobalParameter }

// GlobalParameter returns the JSON text of a global parameter.
func (g *globals) GlobalParameter(name string) (value []byte, ok bool) {
	i, ok := findSetting(g.globalRows, name, (*logpb.PutGlobalParameter).GetName)
	if !ok {
		return nil, false
	}
	return g.globalRows[i].GetValue(), true
}

// GlobalParameters lists the global parameters by name. The rows are shared and must not be changed.
func (g *globals) GlobalParameters() []*logpb.PutGlobalParameter { return slices.Clone(g.globalRows) }

// ShownName is the name that was given to the cluster; ok is false if none was. It is the JSON string
// in a global parameter.
func (g *globals) ShownName() (name string, ok bool) {
	value, ok := g.GlobalParameter(ClusterName)
	if !ok || json.Unmarshal(value, &name) != nil || name == "" {
		return "", false
	}
	return name, true
}

// put performs PutGlobalParameter. The value is text of its proposer: it is not read here.
func (g *globals) put(m *logpb.PutGlobalParameter) (*logpb.CatalogResult, error) {
	if err := checkName("global parameter", m.GetName()); err != nil {
		return nil, err
	}
	i, given := findSetting(g.globalRows, m.GetName(), (*logpb.PutGlobalParameter).GetName)
	next := slices.Clone(g.globalRows)
	switch {
	case len(m.GetValue()) > maxGlobalBytes:
		return nil, refuse(fsm.Precondition, "a global parameter may have at most %d bytes, not %d", maxGlobalBytes, len(m.GetValue()))
	case m.GetUnset() && !given, given && !m.GetUnset() && slices.Equal(g.globalRows[i].GetValue(), m.GetValue()):
		return &logpb.CatalogResult{}, nil
	case m.GetUnset():
		next = slices.Delete(next, i, i+1)
	case given:
		next[i] = m
	case len(next) >= maxGlobals:
		return nil, refuse(fsm.Precondition, "limit of %d global parameters reached", maxGlobals)
	default:
		next = slices.Insert(next, i, m)
	}
	g.globalRows = next
	return &logpb.CatalogResult{Changed: true}, nil
}

func (g *globals) save(to *logpb.CatalogSnapshot) { to.GlobalParameters = g.globalRows }

func (g *globals) restore(from *logpb.CatalogSnapshot) { g.globalRows = from.GetGlobalParameters() }

func (g *globals) describe(b *strings.Builder) {
	for _, row := range g.globalRows {
		fmt.Fprintf(b, "global-parameter %s %s\n", row.GetName(), row.GetValue())
	}
}

func (g *globals) check() error {
	for i, row := range g.globalRows {
		if i > 0 && g.globalRows[i-1].GetName() >= row.GetName() {
			return fmt.Errorf("global parameter %q follows %q", row.GetName(), g.globalRows[i-1].GetName())
		}
	}
	return nil
}

// LockSecretSize is the length of the secret of lock tokens.
const LockSecretSize = 32

// lockKey is the secret by which nodes make lock tokens and know them again. It
// is chosen once, by a node, and kept for ever: whoever has it can settle any
// delivery. It is in the log and in snapshots, like the hashes of passwords, and in no
// text, listing or export.
//
// Invariant: LockSecretSize bytes, or none yet. It is never changed.
type lockKey struct{ lockSecret []byte }

// LockSecret returns the secret of lock tokens; nil: there is none yet. Nobody
// may change it.
func (k *lockKey) LockSecret() []byte { return k.lockSecret }

// put performs PutLockKey. Of several nodes that choose one the first wins.
func (k *lockKey) put(m *logpb.PutLockKey) (*logpb.CatalogResult, error) {
	switch {
	case len(m.GetSecret()) != LockSecretSize:
		return nil, refuse(fsm.Internal, "the secret of lock tokens has %d bytes", LockSecretSize)
	case k.lockSecret != nil:
		return &logpb.CatalogResult{}, nil
	}
	k.lockSecret = slices.Clone(m.GetSecret())
	return &logpb.CatalogResult{Changed: true}, nil
}

func (k *lockKey) save(to *logpb.CatalogSnapshot) { to.LockSecret = k.lockSecret }

func (k *lockKey) restore(from *logpb.CatalogSnapshot) {
	if len(from.GetLockSecret()) > 0 {
		k.lockSecret = from.GetLockSecret()
	}
}

// describe says only that there is one.
func (k *lockKey) describe(b *strings.Builder) {
	if k.lockSecret != nil {
		b.WriteString("lock-key\n")
	}
}

func (k *lockKey) check() error {
	if n := len(k.lockSecret); n != 0 && n != LockSecretSize {
		return fmt.Errorf("the secret of lock tokens has %d bytes", n)
	}
	return nil
}

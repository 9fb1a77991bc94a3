package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// checksPath is the path of the health checks.
const checksPath = "/api/health/checks/"

// checkVerbs are the health checks.
func checkVerbs() []verb {
	both, diagnostics := []string{queuesName, diagnosticsName}, []string{diagnosticsName}
	return []verb{
		{name: "check_if_node_is_quorum_critical", about: "fails if a queue would lose its majority without the node", run: passes("node-is-quorum-critical", "No queue would lose its majority if node NODE stopped"), also: both},
		{name: "check_for_quorum_queues_without_an_elected_leader", about: "fails if a queue has no leader", run: passes("quorum-queues-without-elected-leaders/all-vhosts", "All quorum queues have a leader"), also: diagnostics},
		{name: "check_alarms", about: "fails if an alarm is in effect in the cluster", run: passes("alarms", "No alarm is in effect in the cluster"), also: diagnostics},
		{name: "check_local_alarms", about: "fails if an alarm is in effect at the node", run: passes("local-alarms", "No alarm is in effect on node NODE"), also: diagnostics},
		{name: "check_certificate_expiration", about: "fails if a certificate that the node presents, or verifies others by, expires soon", run: checkExpiration, also: diagnostics,
			options: []option{{"within", "`NUMBER` of units in which it must not expire", ""}, {"unit", "`UNIT`: days, weeks, months or years", ""}}, example: "--within 4 --unit weeks"},
		{name: "check_running", about: "fails unless the node serves clients", run: passes("ready-to-serve-clients", "Node NODE serves clients"), also: diagnostics},
		{name: "is_running", about: "says whether the node serves clients", more: " It fails if not.", run: passes("ready-to-serve-clients", "Node NODE serves clients"), also: diagnostics},
		{name: "is_booting", about: "says whether the node answers and does not serve clients yet", more: " It fails if not.", run: checkBooting, also: diagnostics},
		{name: "check_port_connectivity", about: "fails unless connections to all ports of the node succeed from here", run: checkConnectivity, also: diagnostics},
		{name: "check_port_listener", arguments: "PORT", least: 1, maxArguments: 1, about: "fails unless the node listens on a port", run: checkPort, also: diagnostics, example: "5672"},
		{name: "check_protocol_listener", arguments: "PROTOCOL", least: 1, maxArguments: 1, about: "fails unless the node speaks a protocol: amqp, amqp/ssl, http …", run: checkProtocol, also: diagnostics, example: "amqp"},
		{name: "check_virtual_hosts", about: "fails if a vhost is down on the node", run: passes("virtual-hosts", "No vhost is down on node NODE"), also: diagnostics},
		{name: "check_if_metadata_store_is_initialized", about: "fails unless the node has the catalog", run: passes("metadata-store/initialized/with-data", "Node NODE has the catalog"), also: diagnostics},
		{name: "check_if_metadata_store_is_initialized_with_data", about: "fails unless the node has the catalog with its data", run: passes("metadata-store/initialized/with-data", "Node NODE has the catalog"), also: diagnostics},
		{name: "check_if_any_deprecated_features_are_used", about: "fails if a deprecated feature is used: there are none", run: checkDeprecated, also: diagnostics},
		{name: "check_if_new_quorum_queue_replicas_have_finished_initial_sync", about: "fails while the node has a replica that does not vote yet", run: checkSynced, also: both},
		{name: "check_quarantined_queues", about: "fails if a queue is quarantined on the node, which does not lead it because work for it has panicked", run: passes("quarantined-queues", "No queue is quarantined on node NODE")},
		{name: "check_unproven_replicas", about: "fails if replicas on the node are being rebuilt: they do not vote until a leader has brought them up to date", run: passes("unproven-replicas", "Every replica on node NODE can prove what it has acknowledged")},
		{name: "check_closed_replicas", about: "fails if replicas on the node could not be opened", run: passes("closed-replicas", "Every replica on node NODE is open")},
		{name: "check_parked_messages", about: "fails if messages are parked in queues that the node leads: they have exceeded the default delivery limit", run: passes("parked-messages", "No message is parked in the queues led by node NODE")},
		{name: "check_leaders_make_progress", about: "fails if work for a queue that the node leads makes no progress", run: passes("leaders-make-progress", "The queues led by node NODE make progress")},
	}
}

// health runs a health check. If that fails, so does the verb: why makes the error of the answer.
func health[T any](c *call, name string, why func(*T) error) (result T, err error) {
	status, err := c.client.ask(c, http.MethodGet, checksPath+name, nil, &result, http.StatusServiceUnavailable)
	if err == nil && status == http.StatusServiceUnavailable {
		err = &exitError{exitFailed, why(&result)}
	}
	return result, err
}

// healthCheck runs one of the checks that have a common form.
func healthCheck(c *call, name string) (api.Check, error) {
	return health(c, name, func(x *api.Check) error { return fmt.Errorf("%s%s", x.Reason, about(x)) })
}

// maxNamed bounds how many queues an error names.
const maxNamed = 20

// about names the findings of a failed check.
func about(result *api.Check) string {
	var names []string
	for _, q := range result.Queues {
		names = append(names, q.ReadableName)
	}
	for _, a := range result.Alarms {
		names = append(names, a.Resource+" on node "+a.Node)
	}
	if len(names) > maxNamed {
		names = append(names[:maxNamed], fmt.Sprintf("and %d more", len(names)-maxNamed))
	}
	if len(names) == 0 {
		return ""
	}
	return ": " + strings.Join(names, ", ")
}

// checked shows a check that has passed.
func checked(c *call, name, line string) error {
	result, err := healthCheck(c, name)
	if err != nil {
		return err
	}
	if c.options.formatter == "json" {
		return c.json(result)
	}
	c.say(line)
	return nil
}

// passes is the verb of a check. It shows a line, in which NODE stands for the node, if the check has passed.
func passes(name, line string) func(*call) error {
	return func(c *call) error { return checked(c, name, strings.ReplaceAll(line, "NODE", c.options.node)) }
}

func checkExpiration(c *call) error {
	if c.option("within") == "" || c.option("unit") == "" {
		return usageError("check_certificate_expiration requires --within N and --unit days, weeks, months or years")
	}
	within, unit := url.PathEscape(c.option("within")), url.PathEscape(c.option("unit"))
	return checked(c, "certificate-expiration/"+within+"/"+unit, "No certificate of node "+c.options.node+" ends within "+c.option("within")+" "+c.option("unit"))
}

// checkBooting is for scripts that wait: a node that does not answer is not booting.
func checkBooting(c *call) error {
	_, err := healthCheck(c, "ready-to-serve-clients")
	switch {
	case err == nil:
		return &exitError{exitFailed, fmt.Errorf("node %s serves clients", c.options.node)}
	case exitCodeOf(err) != exitFailed:
		return err
	}
	c.say("Node " + c.options.node + " does not serve clients yet")
	return nil
}

// checkConnectivity connects to every port of the node from here.
func checkConnectivity(c *call) error {
	var o api.Overview
	if err := c.get(path("overview"), &o); err != nil {
		return err
	}
	host := c.client.host()
	var dialer net.Dialer
	var failed []string
	for _, l := range o.Listeners {
		if l.Node != o.Node {
			continue
		}
		at := net.JoinHostPort(host, strconv.Itoa(l.Port))
		conn, err := dialer.DialContext(c, "tcp", at)
		if err != nil {
			failed = append(failed, fmt.Sprintf("%s (%s): %v", at, l.Protocol, err))
			continue
		}
		conn.Close()
	}
	if len(failed) > 0 {
		return &exitError{exitFailed, errors.New(strings.Join(failed, ", "))}
	}
	c.say("Connections to all ports of node " + o.Node + " succeed")
	return nil
}

func checkPort(c *call) error {
	_, err := health(c, "port-listener/"+url.PathEscape(c.words[0]), func(x *api.PortCheck) error {
		return fmt.Errorf("%s on port %s; open are %v", x.Reason, c.words[0], x.Ports)
	})
	if err == nil {
		c.say("The node listens on port " + c.words[0])
	}
	return err
}

func checkProtocol(c *call) error {
	_, err := health(c, "protocol-listener/"+url.PathEscape(c.words[0]), func(x *api.ProtocolCheck) error {
		return fmt.Errorf("%s for %s; there are %s", x.Reason, c.words[0], strings.Join(x.Protocols, " "))
	})
	if err == nil {
		c.say("The node speaks " + c.words[0])
	}
	return err
}

func checkDeprecated(c *call) error {
	var used []any
	if err := c.get(path("deprecated-features", "used"), &used); err != nil {
		return err
	}
	if len(used) > 0 {
		return &exitError{exitFailed, fmt.Errorf("%d deprecated features are used", len(used))}
	}
	c.say("No deprecated feature is used")
	return nil
}

// checkSynced asks for the members of each queue that has a replica on the node.
func checkSynced(c *call) error {
	var s api.Status
	if err := c.get("/api/quorate/status", &s); err != nil {
		return err
	}
	var here []api.Replica
	if err := c.get(replicasPath, &here); err != nil {
		return err
	}
	var behind []string
	for _, r := range here {
		var members []api.Member
		status, err := c.client.ask(c, http.MethodGet, path("queues", "quorum", r.VHost, r.Name, "status"), nil, &members, http.StatusNotFound)
		if err != nil {
			return err
		}
		if status == http.StatusNotFound {
			continue // it was deleted meanwhile
		}
		for _, m := range members {
			if m.Node == s.Node && m.Membership == "non_voter" {
				behind = append(behind, r.VHost+"/"+r.Name)
			}
		}
	}
	if len(behind) > 0 {
		return &exitError{exitFailed, fmt.Errorf("replicas that do not vote yet: %s", strings.Join(behind[:min(len(behind), maxNamed)], ", "))}
	}
	c.say("All replicas on node " + s.Node + " vote")
	return nil
}

package main

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// checksPath is the path of the health checks.
const checksPath = "/api/health/checks/"

// checkVerbs are the health checks.
func checkVerbs() []verb {
	both, diagnostics := []string{queuesName, diagnosticsName}, []string{diagnosticsName}
	return []verb{
		{name: "check_if_node_is_quorum_critical", about: "fails if a queue would lose its majority without the node", run: checkCritical, also: both},
		{name: "check_for_quorum_queues_without_an_elected_leader", about: "fails if a queue has no leader", run: checkLeaders, also: diagnostics},
		{name: "check_alarms", about: "fails if an alarm is in effect in the cluster", run: checkAlarms, also: diagnostics},
		{name: "check_local_alarms", about: "fails if an alarm is in effect at the node", run: checkLocalAlarms, also: diagnostics},
		{name: "check_certificate_expiration", about: "fails if a certificate that the node presents, or verifies others by, expires soon", run: checkExpiration, also: diagnostics,
			options: []option{{"within", "`NUMBER` of units in which it must not expire", ""}, {"unit", "`UNIT`: days, weeks, months or years", ""}}, example: "--within 4 --unit weeks"},
		{name: "check_quarantined_queues", about: "fails if a queue is quarantined on the node, which does not lead it because work for it has panicked", run: checkQuarantined},
		{name: "check_unproven_replicas", about: "fails if replicas on the node are being rebuilt: they do not vote until a leader has brought them up to date", run: checkUnproven},
		{name: "check_leaders_make_progress", about: "fails if work for a queue that the node leads makes no progress", run: checkProgress},
	}
}

// healthCheck runs a health check. If that fails, so does the verb.
func healthCheck(c *call, name string) (api.Check, error) {
	var result api.Check
	status, err := c.client.ask(c, http.MethodGet, checksPath+name, nil, &result, http.StatusServiceUnavailable)
	if err == nil && status == http.StatusServiceUnavailable {
		err = &exitError{exitFailed, fmt.Errorf("%s%s", result.Reason, about(result))}
	}
	return result, err
}

// maxNamed bounds how many queues an error names.
const maxNamed = 20

// about names the findings of a failed check.
func about(result api.Check) string {
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

func checkCritical(c *call) error {
	return checked(c, "node-is-quorum-critical", "No queue would lose its majority if node "+c.options.node+" stopped")
}

func checkLeaders(c *call) error {
	return checked(c, "quorum-queues-without-elected-leaders/all-vhosts", "All quorum queues have a leader")
}

func checkAlarms(c *call) error { return checked(c, "alarms", "No alarm is in effect in the cluster") }

func checkLocalAlarms(c *call) error {
	return checked(c, "local-alarms", "No alarm is in effect on node "+c.options.node)
}

func checkExpiration(c *call) error {
	if c.option("within") == "" || c.option("unit") == "" {
		return usageError("check_certificate_expiration needs --within N and --unit days, weeks, months or years")
	}
	within, unit := url.PathEscape(c.option("within")), url.PathEscape(c.option("unit"))
	return checked(c, "certificate-expiration/"+within+"/"+unit, "No certificate of node "+c.options.node+" ends within "+c.option("within")+" "+c.option("unit"))
}

func checkQuarantined(c *call) error {
	return checked(c, "quarantined-queues", "No queue is quarantined on node "+c.options.node)
}

func checkUnproven(c *call) error {
	return checked(c, "unproven-replicas", "Every replica on node "+c.options.node+" can prove what it has acknowledged")
}

func checkProgress(c *call) error {
	return checked(c, "leaders-make-progress", "The queues led by node "+c.options.node+" make progress")
}

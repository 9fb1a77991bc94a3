package mgmt

import (
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

const day = 24 * time.Hour

// expiryUnits are the units of the check below.
var expiryUnits = map[string]time.Duration{
	"day": day, "days": day, "week": 7 * day, "weeks": 7 * day, "month": 365 * day / 12, "months": 365 * day / 12, "year": 365 * day, "years": 365 * day,
}

// maxWithin is the longest time ahead that can be checked.
const maxWithin = 200 * 365 * day

// expiryCheck fails if a certificate that the node presents, or one that it checks others by,
// expires within the time in the path.
func (h healthChecks) expiryCheck(w *responder, r *request) {
	within, err := strconv.Atoi(r.PathValue("within"))
	if err != nil || within < 0 {
		w.badRequest("Invalid expiration value.")
		return
	}
	unit, known := expiryUnits[strings.ToLower(r.PathValue("unit"))]
	if !known {
		w.badRequest("Time unit not recognised. Use: days, weeks, months, years.")
		return
	}
	end := time.Now().Add(time.Duration(min(within, int(maxWithin/unit))) * unit)
	c := api.Check{}
	for _, x := range h.node.Certificates() {
		own, theirs := x.Ends.Before(end), !x.AuthoritiesEnd.IsZero() && x.AuthoritiesEnd.Before(end)
		if !own && !theirs {
			continue
		}
		c.Reason = "Certificates expiring"
		e := api.Expiring{Node: h.node.Status().Node, Protocol: x.Protocol, File: x.File, AuthoritiesFile: x.AuthoritiesFile, Ends: []string{}, AuthoritiesEnd: []string{}}
		if own {
			e.Ends = append(e.Ends, x.Ends.UTC().Format(time.RFC3339))
		}
		if theirs {
			e.AuthoritiesEnd = append(e.AuthoritiesEnd, x.AuthoritiesEnd.UTC().Format(time.RFC3339))
		}
		c.Expired = append(c.Expired, e)
	}
	passed(w, c)
}

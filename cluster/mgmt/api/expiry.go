package api

import "time"

// Certificate is what the node shows on one of its ways in.
type Certificate struct {
	Protocol string
	File     string
	Ends     time.Time // of the first one of its chain
	// AuthoritiesFile and AuthoritiesEnd, of the first one in it, are of those by
	// which others are checked; zero: nobody is.
	AuthoritiesFile string
	AuthoritiesEnd  time.Time
}

// Expiring is a way in whose certificates end soon, or have ended.
type Expiring struct {
	Node            string   `json:"node"`
	Protocol        string   `json:"protocol"`
	File            string   `json:"certfile"`
	Ends            []string `json:"certfile_expires_on"` // RFC 3339; empty: not so soon
	AuthoritiesFile string   `json:"cacertfile"`
	AuthoritiesEnd  []string `json:"cacertfile_expires_on"`
}

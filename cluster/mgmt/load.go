package mgmt

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm/catalog"
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

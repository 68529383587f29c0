package httpapi

import "slices"

// An Endpoint is a path and the methods allowed there. Nil methods allow all.
type Endpoint struct {
	Path    string
	Methods []string
}

// Endpoints returns all endpoints.
func Endpoints() (all []Endpoint) {
	for _, r := range endpoints {
		all = append(all, Endpoint{r.path, r.methods})
	}
	return all
}

// Parameters returns the parameters of /v1/auth with a fixed meaning.
func Parameters() []string { return sorted(parameterFields) }

// Fields returns the fields that the JSON objects of /v1/take may have, by the place
// of their description in openapi.yaml.
func Fields() map[string][]string {
	const schemas = "/components/schemas/"
	return map[string][]string{
		schemas + "Take":       sorted((requestFields | listFields)),
		schemas + "ByLimit":    sorted((limitFields | fieldCost | fieldReset | fieldID)),
		schemas + "ByRules":    sorted((requestFields &^ ownFields)),
		schemas + "List":       sorted(listFields),
		schemas + "Descriptor": sorted(descriptorFields),
		schemas + "Descriptor/properties/entries/items": sorted(entryFields),
	}
}

func sorted(s fieldSet) []string { return slices.Sorted(slices.Values(s.names())) }

package rules

import "go.yaml.in/yaml/v3"

// A rule file can name lists of descriptors, so that a gateway asks for several limits by one word. A
// value there says where a gateway's request has it, such as header:X-User; this package keeps the text.

// MaxListed is how many descriptors a list may have, and how many entries each of them.
const MaxListed = 16

// List returns the descriptors of the list of that name, or nil.
func (d *Domain) List(name string) [][]Entry {
	if d == nil {
		return nil
	}
	return d.lists[name]
}

// readLists reads the lists of a domain in a file: {edge: [{user: "header:X-User"}, {address: address}]}.
func (d *draft) readLists(domain *Domain) {
	f, ok := d.fields["lists"]
	if !ok {
		return
	}
	if f.value.Kind != yaml.MappingNode {
		d.failType(f, "a map such as {edge: [{user: \"header:X-User\"}, {address: address}]}")
		return
	}
	if domain.lists == nil {
		domain.lists = map[string][][]Entry{}
	}
	for _, list := range d.readFields(f.value, 1) {
		descriptors := d.listOfMaps(list)
		if len(descriptors) == 0 || len(descriptors) > MaxListed {
			d.fail(list.line, "list '%s' has %d descriptors: want 1 to %d", excerpt(list.name), len(descriptors), MaxListed)
		}
		if domain.lists[list.name] != nil {
			d.fail(f.line, "duplicate list '%s' in domain '%s'", excerpt(list.name), excerpt(domain.Name))
		}
		for _, m := range descriptors {
			domain.lists[list.name] = append(domain.lists[list.name], d.readListed(m))
		}
	}
}

// readListed reads the entries of one descriptor of a list.
func (d *draft) readListed(m field) (entries []Entry) {
	for _, e := range d.readFields(m.value, 1) {
		entries = append(entries, Entry{Key: e.name, Value: d.text(e)})
	}
	if len(entries) == 0 || len(entries) > MaxListed {
		d.fail(m.line, "a descriptor of a list has %d entries: want 1 to %d", len(entries), MaxListed)
	}
	return entries
}

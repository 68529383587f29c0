package rules

// FieldNames returns the names of all fields of a rule file.
func FieldNames() (names []string) {
	for _, k := range fieldKinds {
		names = append(names, k.name)
	}
	return names
}

// UnitNames returns the values of unit.
func UnitNames() []string { return unitNames() }

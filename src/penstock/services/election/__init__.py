"""Election of the leader of a service: standing, leading, stepping down."""

"""What a server holds, keeps and saves, beside what its steps change."""
